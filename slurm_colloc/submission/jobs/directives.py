"""The `#SBATCH` and `#CSUB` lines of a batch script, read as sbatch reads its own.

Also: options that only the site's sbatch knows are learned where one of them is met, and kept.

Quotes and backslashes on `#CSUB` lines are those of a shell: in single quotes a backslash stays.
Taken from sbatch (`src/sbatch/opt.c`, `sbatch.c`, Slurm 26.05); docs/differences.md lists where
csub departs from it. Everything here is pure.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from slurm_colloc.errors import UsageProblem
from slurm_colloc.slurm.options import (
    SBATCH_OPTIONS,
    Argument,
    Concern,
    Given,
    Option,
    OptionWord,
    UnknownOption,
    parse_words,
)

# isspace() of C.
_SPACE = " \t\n\v\f\r"
# sbatch takes the first of them although it warns of it.
_SBATCH_MARKS = ("#SLURM", "#SBATCH")
_OWN_MARK = "#CSUB"
_HETEROGENEOUS = ("hetjob", "packjob")


def check_script(script: bytes, *, name: str) -> None:
    """Refuse what sbatch refuses as a batch script.

    Args:
        script: The file's content.
        name: What to call it in messages.

    Raises:
        UsageProblem: It is empty, has no `#!` line, holds a NUL, or has DOS line breaks.
    """
    if not script:
        raise UsageProblem(f"{name}: the batch script is empty")
    if not script.strip(_SPACE.encode()):
        raise UsageProblem(f"{name}: the batch script holds only whitespace")
    if not script.startswith(b"#!"):
        raise UsageProblem(
            f"{name}: this does not look like a batch script, for its first line does not begin "
            "with #! and the path of an interpreter",
            hint="begin it with #!/bin/bash, for example, or give a command with --wrap",
        )
    if (at := script.find(b"\0")) >= 0:
        line_number = script.count(b"\n", 0, at) + 1
        raise UsageProblem(f"{name}:{line_number}: the batch script holds a NUL character")
    if (at := script.find(b"\r\n")) >= 0:
        line_number = script.count(b"\n", 0, at) + 1
        raise UsageProblem(
            f"{name}:{line_number}: the batch script has DOS line breaks",
            hint=f"convert it, for example with: sed -i 's/\\r$//' {name}",
        )


def parse_directives(
    script: bytes, *, name: str, site_options: Sequence[Option] = ()
) -> tuple[Given, ...]:
    """Return the options on the `#SBATCH` lines of a script, then those on its `#CSUB` lines.

    Lines count up to the first that is neither blank nor a comment. As in sbatch the words of all
    lines of a kind are one list, so that a value may stand on the next line. `#CSUB` lines may
    hold csub's own options and sbatch's, and win over `#SBATCH` lines wherever they stand. The
    text of `--wrap` has no directives (sbatch reads none there): do not ask for them.

    Args:
        script: The file's content; what is not UTF-8 comes through as surrogate escapes.
        name: What to call it in messages.
        site_options: What plugins of the site add to sbatch.

    Raises:
        UsageProblem: A directive is malformed; the message begins with file and line number.
    """
    sbatch_words: list[OptionWord] = []
    own_words: list[OptionWord] = []
    for number, line in enumerate(script.decode("utf-8", "surrogateescape").split("\n"), start=1):
        origin = f"{name}:{number}"
        mark = next((mark for mark in _SBATCH_MARKS if line.startswith(mark)), None)
        if mark is not None:
            texts = _split_line(line.removeprefix(mark), origin)
            if texts and texts[0].lower() in _HETEROGENEOUS:
                raise UsageProblem(
                    f"{origin}: {mark} {texts[0]} asks for a heterogeneous job, which cannot be "
                    "packed",
                    hint="submit it with sbatch",
                )
            sbatch_words += [OptionWord(text, origin) for text in texts]
        elif _is_own(line):
            texts = _split_own_line(line.removeprefix(_OWN_MARK), origin)
            own_words += [OptionWord(text, origin) for text in texts]
        elif line.strip(_SPACE) and not line.lstrip(_SPACE).startswith("#"):
            break
    return (
        *_parse(sbatch_words, own=False, mark="#SBATCH", site_options=site_options),
        *_parse(own_words, own=True, mark=_OWN_MARK, site_options=site_options),
    )


def _is_own(line: str) -> bool:
    rest = line.removeprefix(_OWN_MARK)
    return rest != line and (not rest or rest[0] in _SPACE or rest[0] == "-")


def _parse(
    words: Sequence[OptionWord], *, own: bool, mark: str, site_options: Sequence[Option]
) -> tuple[Given, ...]:
    parsed = parse_words(words, own=own, site_options=site_options)
    if parsed.words:
        stray = words[len(words) - len(parsed.words)]
        raise UsageProblem(
            f"{stray.origin}: {stray.text!r} is not an option, and {mark} lines hold only options",
            hint="check the dashes, and the quotes around values with spaces",
        )
    return parsed.values


def _split_line(text: str, origin: str) -> list[str]:
    """Split what follows the mark into words by sbatch's rules (`get_argument`).

    Both kinds of quotes group, a backslash takes the next character as it is (inside quotes too),
    and an unquoted `#` ends the line, even inside a word.
    """
    words: list[str] = []
    position = 0
    while position < len(text):
        if text[position] in _SPACE:
            position += 1
            continue
        if text[position] == ":":
            raise UsageProblem(
                f"{origin}: there is an unexpected ':'",
                hint="no word of a directive may begin with it",
            )
        if text[position] == "#":
            break
        word, position = _read_word(text, position, origin)
        if word is not None:
            words.append(word)
    return words


def _split_own_line(text: str, origin: str) -> list[str]:
    """Split what follows `#CSUB` as a shell does; a `#` that begins a word ends the line."""
    words: list[str] = []
    position = 0
    while match := _OWN_WORD.match(text, position):
        position = match.end()
        if match["word"]:
            words.append("".join(_unquote(piece) for piece in _OWN_PIECE.findall(match["word"])))
    rest = text[position:].lstrip(_SPACE)
    if rest and not rest.startswith("#"):
        left = _OWN_PIECE.sub("", rest).strip()[:1]
        if left == "\\":
            raise UsageProblem(f"{origin}: nothing follows the backslash at the end of the line")
        raise UsageProblem(
            f"{origin}: the quote {left} is never closed", hint="close it on the same line"
        )
    return words


_OWN_PIECE = re.compile(r"""('[^']*'|"(?:[^"\\]|\\.)*"|\\.|[^\s'"\\]++)""")
_OWN_WORD = re.compile(rf"\s*(?P<word>(?!#)(?:{_OWN_PIECE.pattern[1:-1]})++)(?=\s|$)")


def _unquote(piece: str) -> str:
    if piece.startswith("'"):
        return piece[1:-1]
    if piece.startswith('"'):
        # Inside of these a backslash stays before all but what has a meaning there.
        return re.sub(r'\\([$`"\\])', r"\1", piece[1:-1])
    return piece.removeprefix("\\")


def _read_word(text: str, position: int, origin: str) -> tuple[str | None, int]:
    """Return the word that begins here and where it ends; None for a lone backslash."""
    characters: list[str] = []
    quote = ""
    was_quoted = False
    while position < len(text):
        character = text[position]
        if character == "\\":
            # Only a space is kept by a backslash; other blanks still end an unquoted word.
            position += 1
            escaped = text[position : position + 1]
            if escaped and (quote or escaped == " " or escaped not in _SPACE):
                characters.append(escaped)
                position += 1
            continue
        if quote:
            if character == quote:
                quote = ""
            else:
                characters.append(character)
        elif character in _SPACE or character == "#":
            break
        elif character in "\"'":
            quote = character
            was_quoted = True
        else:
            characters.append(character)
        position += 1
    if quote:
        raise UsageProblem(
            f"{origin}: the quote {quote} is never closed", hint="close it on the same line"
        )
    return "".join(characters) if characters or was_quoted else None, position


# ---- Options that only the site's sbatch knows are learned where one of them is met, and kept ----

_KEPT_S = 24 * 3600.0
_Parsed = TypeVar("_Parsed")


@dataclasses.dataclass(frozen=True)
class SiteAnswer:
    """Which options the site's sbatch has besides, and their arguments."""

    options: tuple[tuple[str, str], ...]


class SiteOptions:
    """What plug-ins add to sbatch, once it is needed.

    Args:
        environ: The environment.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._options: Sequence[Option] = ()
        self._is_asked = False

    def parse(self, parse: Callable[[Sequence[Option]], _Parsed]) -> _Parsed:
        """Parse with what is known of the site, and once more when all of it is.

        Args:
            parse: Parses, with these options besides Slurm's and csub's own.

        Raises:
            UsageProblem: As `parse` does; of an unknown option if the site has none of that name.
        """
        try:
            return parse(self._options)
        except UnknownOption as problem:
            if self._is_asked or not problem.name:
                raise
            self._is_asked = True
            self._options = learn_site_options(problem.name, self._environ)
            if not self._options:
                raise
        return parse(self._options)


def learn_site_options(wanted: str, environ: Mapping[str, str]) -> tuple[Option, ...]:
    """What plug-ins add to sbatch: as it was kept if that has the wanted one, else asked again.

    Args:
        wanted: The option that is not known, perhaps shortened.
        environ: The environment.

    Raises:
        UsageProblem: The settings are wrong.
    """
    # Imported here: hardly a call needs any of it.
    from slurm_colloc.errors import SlurmError
    from slurm_colloc.settings import load_settings
    from slurm_colloc.slurm.option_table import ask_site_options
    from slurm_colloc.slurm.real_command import find_real_command
    from slurm_colloc.store.kept_answers import keep, read_kept

    root = load_settings().state_path
    command = find_real_command("sbatch", environ.get("PATH"))
    if command is None:
        return ()
    installation = _describe_installation(command, environ)
    kept = read_kept(root, "site-options", installation, SiteAnswer, _KEPT_S)
    if kept is not None and any(name.startswith(wanted) for name, _ in kept.options):
        return tuple(
            Option(name, None, Argument(text), Concern.GROUP) for name, text in kept.options
        )
    try:
        found = ask_site_options("sbatch", [option.name for option in SBATCH_OPTIONS])
    except SlurmError:
        return ()
    told = SiteAnswer(tuple((option.name, option.argument.value) for option in found))
    keep(root, "site-options", installation, told)
    return found


def _describe_installation(command: str, environ: Mapping[str, str]) -> str:
    """What the answer depends on: the program, and the list of plug-ins next to slurm.conf."""
    conf = environ.get("SLURM_CONF", "/etc/slurm/slurm.conf")
    parts = []
    for path in (command, conf, os.path.join(os.path.dirname(conf), "plugstack.conf")):
        try:
            found = os.stat(path)
            parts.append(f"{path} {found.st_mtime_ns} {found.st_size}")
        except OSError:
            parts.append(f"{path} -")
    return "; ".join(parts)
