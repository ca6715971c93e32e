"""What a call of scontrol asks for, where it may concern tasks of packs.

Imports little, for the sake of the shims that start often.
"""

from __future__ import annotations

from slurm_colloc.slurm.tables.command_words import CommandOptions, split_ids

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
