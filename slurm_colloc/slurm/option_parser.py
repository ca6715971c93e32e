"""The rules of getopt_long(3) over a table of options, with messages that name the place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_colloc.errors import UsageProblem
from slurm_colloc.slurm.option_definition import Argument, Option
from slurm_colloc.slurm.option_table import OWN_OPTIONS
from slurm_colloc.slurm.srun_options import SRUN_ONLY


class UnknownOption(UsageProblem):
    """An option that no table has; a plug-in of the site may have brought it.

    Attributes:
        name: The long name as it was given; empty for a letter.
    """

    name = ""


@dataclass(frozen=True)
class Given:
    """One option as it was given.

    Attributes:
        option: The option; another spelling has become the usual one.
        value: Its value, or None where it has none.
        origin: Where it was given, for messages: `the command line`, `environment variable
            SBATCH_PARTITION`, or `train.sh:3`.
        times: How often in a row, for flags that count (`-vv`).
        cleared: Whether it is an environment variable that turns the flag off, and so takes back
            what the script said (sbatch(1), "Input environment variables").
    """

    option: Option
    value: str | None
    origin: str
    times: int = 1
    cleared: bool = False


@dataclass(frozen=True)
class ParsedLine:
    """A parsed command line.

    Attributes:
        values: The options in the order in which they were given.
        words: What follows them: the script or command, and its arguments.
    """

    values: tuple[Given, ...]
    words: tuple[str, ...]


@dataclass(frozen=True)
class OptionWord:
    """One word to parse, and where it stands (for messages)."""

    text: str
    origin: str


class OptionParser:
    """One pass over words with one set of options.

    Args:
        options: Those that win where a shortened name fits several.
        own_options: Those that stand back.
        kind: Whose options these are, for messages.
        located: Whether messages begin with the place of the word.
    """

    def __init__(
        self,
        options: Sequence[Option],
        own_options: Sequence[Option],
        *,
        kind: str,
        located: bool = False,
    ) -> None:
        self._names = {option.name: option for option in options}
        self._own_names = {option.name: option for option in own_options}
        self._letters = {option.short: option for option in options if option.short}
        self._usual = {**self._names, **self._own_names}
        self._kind = kind
        self._located = located

    def parse(self, words: Sequence[OptionWord]) -> ParsedLine:
        """Return the options up to the first word that is none, and the words from there on.

        Raises:
            UsageProblem: An option is unknown, ambiguous, without its value, or with one too many.
        """
        givens: list[Given] = []
        index = 0
        while index < len(words):
            word = words[index]
            if word.text == "--":
                index += 1
                break
            if word.text == "-" or not word.text.startswith("-"):
                break
            index += 1
            following = words[index] if index < len(words) else None
            if word.text.startswith("--"):
                given, used = self._parse_long(word, following)
                givens.append(given)
            else:
                cluster, used = self._parse_letters(word, following)
                givens += cluster
            index += used
        return ParsedLine(tuple(givens), tuple(word.text for word in words[index:]))

    def _parse_long(self, word: OptionWord, following: OptionWord | None) -> tuple[Given, int]:
        name, equals, value = word.text[2:].partition("=")
        option = self._find(name, word)
        if option.argument is Argument.NONE and equals:
            raise self._problem(word, f"--{option.name} takes no value, but has {value!r}")
        if option.argument is Argument.REQUIRED and not equals:
            return self._with_next(option, f"--{option.name}", word, following), 1
        if not equals and following is not None and following.text in option.choices:
            return self._given(option, following.text, word), 1
        return self._given(option, value if equals else None, word), 0

    def _parse_letters(
        self, word: OptionWord, following: OptionWord | None
    ) -> tuple[list[Given], int]:
        givens: list[Given] = []
        letters = word.text[1:]
        for position, letter in enumerate(letters):
            option = self._letters.get(letter)
            if option is None:
                inside = f" (in {word.text})" if len(letters) > 1 else ""
                told = self._problem(word, f"-{letter}{inside} is not an {self._kind} option")
                raise UnknownOption(told.message)
            attached = letters[position + 1 :]
            if option.argument is Argument.NONE:
                givens.append(self._given(option, None, word))
            elif attached or option.argument is Argument.OPTIONAL:
                return [*givens, self._given(option, attached or None, word)], 0
            else:
                return [*givens, self._with_next(option, f"-{letter}", word, following)], 1
        return givens, 0

    def _with_next(
        self, option: Option, shown: str, word: OptionWord, following: OptionWord | None
    ) -> Given:
        if following is None:
            raise self._problem(word, f"{shown} needs a value")
        return self._given(option, following.text, word)

    def _given(self, option: Option, value: str | None, word: OptionWord) -> Given:
        return Given(self._usual[option.canonical_name], value, word.origin)

    def _find(self, name: str, word: OptionWord) -> Option:
        exact = self._names.get(name) or self._own_names.get(name)
        if exact is not None:
            return exact
        for names in (self._names, self._own_names):
            fitting = [option for key, option in names.items() if key.startswith(name)]
            # As getopt_long: several spellings of one option are no ambiguity.
            if fitting and len({option.canonical_name for option in fitting}) == 1:
                return fitting[0]
            if fitting:
                candidates = sorted(f"--{option.name}" for option in fitting)
                raise self._problem(word, f"--{name} is ambiguous", _either(candidates))
        told = self._unknown(name, word)
        unknown = UnknownOption(told.message, hint=told.hint)
        unknown.name = name
        raise unknown

    def _unknown(self, name: str, word: OptionWord) -> UsageProblem:
        # Only for a message, so not worth loading on every call.
        from difflib import get_close_matches

        message = f"--{name} is not an {self._kind} option"
        if any(option.name == name for option in OWN_OPTIONS):
            hint = "it is csub's own and belongs on a #CSUB line"
            return self._problem(word, message, hint)
        if any(option.name == name for option in SRUN_ONLY):
            return self._problem(word, message, "it belongs to srun")
        nearest = get_close_matches(name, self._usual, n=3, cutoff=0.7)
        hint = _either([f"--{other}" for other in nearest])
        return self._problem(word, message, f"did you mean {hint}?" if hint else "")

    def _problem(self, word: OptionWord, message: str, hint: str = "") -> UsageProblem:
        return UsageProblem(f"{word.origin}: {message}" if self._located else message, hint=hint)


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
