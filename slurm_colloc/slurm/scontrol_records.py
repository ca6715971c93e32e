"""The records of `scontrol show job`, in which single fields are replaced.

Also: what `scontrol show job` and squeue call a job's command; the words of a Slurm command by the
rules of getopt_long(3), for one set of options; what a call of scontrol asks for, where it may
concern tasks of packs.

Loads nothing, for the sake of the shims that start often.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping


_INDENT = "\n   "
_TO_THE_END = ("JobName", "Command", "WorkDir", "StdErr", "StdIn", "StdOut", "Comment")
"""Fields that end with their line; their values may hold spaces."""


def split_records(text: str) -> list[str]:
    """The records of an answer that was asked for without `--oneliner`."""
    return text.split("\n\n")


def join_records(records: list[str], *, is_one_line: bool) -> str:
    """An answer, as with `--oneliner` or without it."""
    if is_one_line:
        return "".join(f"{record.replace(_INDENT, ' ')}\n" for record in records if record.strip())
    return "\n\n".join(records)


def find_field(record: str, name: str) -> str | None:
    """The first value of a field, up to the next space; None where there is none."""
    for word in record.split():
        key, equals, value = word.partition("=")
        if equals and key == name:
            return value
    return None


def name_job(record: str) -> str:
    """`4711`, `4711_3`, or `4711_[1-4]` for some that wait; empty where it is no job's."""
    head = record.partition("\n")[0].partition(" JobName=")[0]
    array, task = find_field(head, "ArrayJobId"), find_field(head, "ArrayTaskId")
    if array is None or task is None:
        return find_field(head, "JobId") or ""
    return f"{array}_{task}" if task.isdecimal() else f"{array}_[{task}]"


def rename_job(record: str, ids: str) -> str:
    """The record with other ids before the job's name."""
    _, name, rest = record.partition(" JobName=")
    return f"{ids}{name}{rest}" if name else record


def replace_fields(record: str, new: Mapping[str, str | None]) -> str:
    """The record with other values; None leaves that of a field as it is."""
    return "\n".join(_replace_in(line, new) for line in record.split("\n"))


def _replace_in(line: str, new: Mapping[str, str | None]) -> str:
    for name, value in new.items():
        if value is None:
            continue
        before, found, rest = f" {line}".partition(f" {name}=")
        if found:
            behind = "" if name in _TO_THE_END else rest[len(rest.split(" ", 1)[0]) :]
            line = f"{before}{found}{value}{behind}"[1:]
            if name in _TO_THE_END:
                break
    return line


def format_clock(seconds: int | None) -> str | None:
    """`[D-]HH:MM:SS`, as scontrol writes times."""
    if seconds is None:
        return None
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{f'{days}-' if days else ''}{hour:02}:{minute:02}:{second:02}"


def format_span(seconds: int) -> str:
    """`1-02:03:04`, `2:03:04` or `3:04`, as squeue writes it (`secs2time_str`)."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


# ---- What `scontrol show job` and squeue call a job's command ------------------------------------


def describe_command(script_name: str, arguments: Sequence[str], submit_directory: str) -> str:
    """The script's whole path and its arguments.

    Args:
        script_name: The script's path as the user wrote it.
        arguments: Its arguments.
        submit_directory: Where csub was called.

    Returns:
        `(null)` where it came by --wrap or standard input.
    """
    script = os.path.normpath(os.path.join(submit_directory, script_name))
    if not os.path.exists(script):
        import shutil

        found = shutil.which(script_name)
        if found is None:
            return "(null)"
        script = found
    return " ".join([script, *arguments])


# ---- The words of a Slurm command by the rules of getopt_long(3), for one set of options ---------
#
# Imports nothing: the shims that start often need it.


class CommandOptions:
    """The options of a command.

    Args:
        letters: As for getopt(3): `a` a flag, `b:` with a value, `c::` with one that is attached.
        names: Long names and the letters that mean the same; one without a letter names itself.
        with_value: Those of the latter that have a value.
    """

    def __init__(
        self, letters: str, names: Mapping[str, str], with_value: Sequence[str] = ()
    ) -> None:
        self._names = names
        self._takes: dict[str, int] = dict.fromkeys(with_value, 1)
        for position, letter in enumerate(letters):
            if letter != ":":
                rest = letters[position + 1 :]
                self._takes[letter] = len(rest) - len(rest.lstrip(":"))

    def split(
        self, words: Sequence[str]
    ) -> tuple[list[tuple[str, str | None, list[str]]], list[str]] | None:
        """Options as (letter or name, value, the words as they stood), and all other words.

        Returns:
            None where a word is not an option of this command.
        """
        options: list[tuple[str, str | None, list[str]]] = []
        operands: list[str] = []
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if word == "--":
                return options, operands + rest
            if word[:1] != "-" or word == "-":
                operands.append(word)
            elif word[:2] == "--":
                found = self._split_long(word, rest)
                if found is None:
                    return None
                options.append(found)
            elif not self._split_letters(word, rest, options):
                return None
        return options, operands

    def rewrite(
        self, words: Sequence[str], keys: Collection[str], change: Callable[[str], str]
    ) -> list[str] | None:
        """The words with other values of some options.

        Args:
            words: The words.
            keys: The options, by letter or name; `""` for all words that are none.
            change: Makes the values of the values.

        Returns:
            None where a word is not an option of this command.
        """
        split = self.split(words)
        if split is None:
            return None
        rewritten: list[str] = []
        for key, value, shown in split[0]:
            rewritten += [f"-{key}{change(value)}"] if key in keys and value else shown
        operands = [change(word) for word in split[1]] if "" in keys else split[1]
        return [*rewritten, *(["--", *operands] if operands else [])]

    def _split_long(self, word: str, rest: list[str]) -> tuple[str, str | None, list[str]] | None:
        name, equals, value = word[2:].partition("=")
        fitting = {self._names[name]} if name in self._names else set()
        if not fitting:
            fitting = {key for long, key in self._names.items() if long.startswith(name)}
        if len(fitting) != 1:
            return None
        key = fitting.pop()
        if equals or self._takes.get(key, 0) != 1:
            return key, value if equals else None, [word]
        if not rest:
            return None
        return key, rest[0], [word, rest.pop(0)]

    def _split_letters(
        self, word: str, rest: list[str], options: list[tuple[str, str | None, list[str]]]
    ) -> bool:
        for position, letter in enumerate(word[1:], start=2):
            takes = self._takes.get(letter)
            if takes is None:
                return False
            attached = word[position:]
            if takes and attached:
                options.append((letter, attached, [f"-{letter}{attached}"]))
                return True
            if takes == 1:
                if not rest:
                    return False
                options.append((letter, rest[0], [f"-{letter}", rest.pop(0)]))
                return True
            options.append((letter, None, [f"-{letter}"]))
        return True


def split_ids(text: str) -> list[str]:
    """Ids between commas; those within brackets part none."""
    words, depth = [""], 0
    for letter in text:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            words.append("")
        else:
            words[-1] += letter
    return [word.strip() for word in words if word.strip()]


# ---- What a call of scontrol asks for, where it may concern tasks of packs -----------------------
#
# Imports little, for the sake of the shims that start often.

_OPTIONS = CommandOptions(
    "adDFhM:oQu:vV",
    {
        "all": "a", "autocomplete": "autocomplete", "cluster": "M", "clusters": "M",
        "details": "d", "federation": "federation", "future": "F", "help": "h", "hide": "hide",
        "json": "json", "local": "local", "oneliner": "o", "quiet": "Q", "sibling": "sibling",
        "uid": "u", "usage": "usage", "verbose": "v", "version": "V", "yaml": "yaml",
    },
)  # fmt: skip
_FOLLOWED = frozenset({"a", "d", "hide", "json", "local", "o", "Q", "v"})
"""Options of calls that csub follows; with any other Slurm is meant."""

_VERBS = (("show", 2), ("release", 3), ("requeue", 3), ("update", 1))
"""Words of which scontrol takes any beginning, and how many letters it wants at least (scontrol.c,
`_process_command`; 22.05 to 26.05)."""

_LONG_VERBS = {"requeuehold": "requeuehold", "hold": "hold", "uhold": "hold"}
"""Those of which it wants all letters, and takes more."""


class ScontrolCall:
    """A call about jobs.

    Args:
        options: Options by letter or name, with their values.
        words: The options as they stood.
        verb: What is asked, in full: `show` is that of jobs.
        ids: The jobs that are named, a word each; none for all.
        rest: What else is said; of an update, what is to be changed.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        words: Sequence[str],
        verb: str,
        ids: Sequence[str],
        rest: Sequence[str],
    ) -> None:
        self.options = options
        self.words = tuple(words)
        self.verb = verb
        self.ids = tuple(ids)
        self.rest = tuple(rest)

    def write_words(self, ids: Sequence[str]) -> list[str]:
        """The arguments of the same call about other jobs."""
        if self.verb == "update":
            return [*self.words, self.verb, f"JobId={','.join(ids)}", *self.rest]
        head = ["show", "job"] if self.verb == "show" else [self.verb]
        return [*self.words, *head, *self.rest, *ids]


def split_scontrol(arguments: Sequence[str]) -> tuple[list[str], list[str]] | None:
    """Options as they stood, and all other words; None where an option is not known."""
    split = _OPTIONS.split(arguments)
    if split is None:
        return None
    return [word for _, _, shown in split[0] for word in shown], split[1]


def parse_scontrol(arguments: Sequence[str]) -> ScontrolCall | None:
    """Read the arguments of scontrol; None for a call that is Slurm's alone."""
    split = _OPTIONS.split(arguments)
    if split is None:
        return None
    options = {key: value or "" for key, value, _ in split[0]}
    words = [word for _, _, shown in split[0] for word in shown]
    operands = split[1]
    if not operands or not options.keys() <= _FOLLOWED:
        return None
    verb = _find_verb(operands[0])
    if verb == "show":
        ids = _read_shown(operands[1:])
        return None if ids is None else ScontrolCall(options, words, verb, ids, ())
    if verb == "update":
        return _read_update(options, words, operands[1:])
    if verb is None or len(operands) < 2:
        return None
    found: list[str] = []
    rest: list[str] = []
    for word in operands[1:]:
        # `requeuehold state=SpecialExit 4711`, `requeue Incomplete 4711`
        is_id = not word[:1].isalpha() or word.lower().startswith(("jobid=", "job="))
        (found if is_id else rest).append(word.rpartition("=")[2] if is_id else word)
    return ScontrolCall(
        options, words, verb, [one for word in found for one in split_ids(word)], rest
    )


def _find_verb(word: str) -> str | None:
    folded = word.lower()
    for beginning, verb in _LONG_VERBS.items():
        if folded.startswith(beginning):
            return verb
    fitting = (verb for verb, least in _VERBS if len(folded) >= least and verb.startswith(folded))
    return next(fitting, None)


def _read_shown(words: Sequence[str]) -> list[str] | None:
    """The ids of `show job ID`; None where something else is to be shown."""
    if not words or len(words) > 2:
        return None
    entity, equals, value = words[0].partition("=")
    folded = entity.lower()
    if not folded or not ("jobs".startswith(folded) or "jobid".startswith(folded)):
        return None
    if len(words) == 2:
        return None if equals else split_ids(words[1])
    return split_ids(value) if equals else []


def _read_update(
    options: Mapping[str, str], words: Sequence[str], operands: Sequence[str]
) -> ScontrolCall | None:
    ids: list[str] = []
    rest: list[str] = []
    for word in operands:
        key, equals, value = word.partition("=")
        folded = key.lower()
        if equals and not ids and folded and "jobid".startswith(folded):
            ids = split_ids(value)
        else:
            rest.append(word)
    return ScontrolCall(options, words, "update", ids, rest) if ids else None
