"""Command lines of csub, sbatch and srun, sbatch's input variables, and how they are merged.

Here it is known which options there are and whether they take a value; what the values mean is
for others to say. Everything here is pure. Every failure is a `UsageProblem`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_colloc.errors import UsageProblem
from slurm_colloc.slurm.option_definition import Argument, Concern, Option
from slurm_colloc.slurm.option_parser import (
    Given,
    OptionParser,
    OptionWord,
    ParsedLine,
    UnknownOption,
)
from slurm_colloc.slurm.option_table import OWN_OPTIONS, SBATCH_OPTIONS
from slurm_colloc.slurm.srun_options import SRUN_ONLY, SRUN_OPTIONS

__all__ = [
    "COMMAND_LINE",
    "OWN_OPTIONS",
    "SBATCH_OPTIONS",
    "SRUN_ONLY",
    "SRUN_OPTIONS",
    "Argument",
    "Concern",
    "Given",
    "Option",
    "OptionWord",
    "Options",
    "ParsedLine",
    "UnknownOption",
    "find_option",
    "merge_options",
    "parse_command_line",
    "parse_srun_line",
    "parse_words",
    "read_environment",
    "render_arguments",
]

COMMAND_LINE = "the command line"

_INTEGER = re.compile(r"\s*[+-]?\d+", re.ASCII)
_MEMORY_OPTIONS = ("mem", "mem-per-cpu", "mem-per-gpu")
# Taking a value since 26.05; the variable is still read as a flag's.
_READ_AS_FLAG = "requeue"


@dataclass(frozen=True)
class Options:
    """The options that hold, each once, after merging all places where they may stand."""

    givens: tuple[Given, ...] = ()

    def given(self, name: str) -> Given | None:
        """Return how the option was given, or None.

        Raises:
            KeyError: There is no option of this name; other spellings have none of their own.
        """
        for given in self.givens:
            if given.option.name == name:
                return given
        find_option(name)
        return None

    def text(self, name: str) -> str | None:
        """Return the option's value; None where it was not given, or given without one."""
        given = self.given(name)
        return None if given is None else given.value

    def flag(self, name: str) -> bool:
        """Return whether the option was given, with or without a value."""
        return self.given(name) is not None

    def times(self, name: str) -> int:
        """Return how often a counting flag was given: 2 for `-vv`, 0 where it was not."""
        given = self.given(name)
        return 0 if given is None else given.times

    def origin(self, name: str) -> str | None:
        """Return where the option was given, or None."""
        given = self.given(name)
        return None if given is None else given.origin

    def select(self, *concerns: Concern) -> tuple[Given, ...]:
        """Return the options of these concerns, in the order of their names."""
        return tuple(given for given in self.givens if given.option.concern in concerns)


def find_option(name: str) -> Option:
    """Return the sbatch option or own option of this usual long name, without dashes.

    Raises:
        KeyError: There is none, or it is another spelling of one.
    """
    for option in (*SBATCH_OPTIONS, *OWN_OPTIONS):
        if option.name == name and option.alias_of is None:
            return option
    raise KeyError(name)


def takes_value(name: str) -> bool:
    """An option of sbatch's is never given without a value; False for one that is not known here.

    Args:
        name: Its usual long name, without dashes.
    """
    try:
        return find_option(name).argument is Argument.REQUIRED
    except KeyError:
        return False


def render_arguments(givens: Iterable[Given]) -> list[str]:
    """Return options as arguments for a command, each as one word in the long form."""
    arguments = []
    for given in givens:
        word = f"--{given.option.name}"
        arguments += [word if given.value is None else f"{word}={given.value}"] * (
            given.times if given.value is None else 1
        )
    return arguments


def parse_command_line(argv: Sequence[str], *, site_options: Sequence[Option] = ()) -> ParsedLine:
    """Parse the arguments of csub as sbatch parses its own.

    Options end at the first word that is none, or after `--`. Long options may be shortened as
    far as they stay unique among sbatch's; those of csub itself stand back.

    Args:
        argv: The arguments, without the program's name.
        site_options: What plugins of the site add to sbatch.

    Raises:
        UsageProblem: An option is unknown, ambiguous, without its value, or with one too many; or
            the line asks for a heterogeneous job.
    """
    parser = OptionParser((*SBATCH_OPTIONS, *site_options), OWN_OPTIONS, kind="sbatch or csub")
    parsed = parser.parse([OptionWord(text, COMMAND_LINE) for text in argv])
    if parsed.words[:1] == (":",):
        raise UsageProblem(
            "a ':' between options asks for a heterogeneous job, which cannot be packed",
            hint="submit it with sbatch",
        )
    return parsed


def parse_srun_line(argv: Sequence[str], *, site_options: Sequence[Option] = ()) -> ParsedLine:
    """Parse the arguments of an srun command, without the program's name.

    The words begin with the command, or with `:` where more components follow.

    Args:
        argv: The arguments.
        site_options: What plugins of the site add to srun.

    Raises:
        UsageProblem: As for `parse_command_line`.
    """
    return OptionParser((*SRUN_OPTIONS, *site_options), (), kind="srun").parse(
        [OptionWord(text, "the srun command line") for text in argv]
    )


def parse_words(
    words: Sequence[OptionWord], *, own: bool, site_options: Sequence[Option] = ()
) -> ParsedLine:
    """Parse words that each know their place, as those of directives; messages begin with it.

    Args:
        words: The words of all directives of one kind.
        own: Whether csub's own options may stand there.
        site_options: What plugins of the site add to sbatch.

    Raises:
        UsageProblem: As for `parse_command_line`.
    """
    sbatch = (*SBATCH_OPTIONS, *site_options)
    if own:
        parser = OptionParser(sbatch, OWN_OPTIONS, kind="sbatch or csub", located=True)
    else:
        parser = OptionParser(sbatch, (), kind="sbatch", located=True)
    return parser.parse(words)


def read_environment(environ: Mapping[str, str]) -> tuple[Given, ...]:
    """Return the options that sbatch's input variables set.

    `SBATCH_WAIT4SWITCH` has no option of its own: sbatch reads it by itself.
    """
    return tuple(
        _read_variable(option, variable, environ[variable])
        for option in SBATCH_OPTIONS
        for variable in option.env
        if variable in environ
    )


def _read_variable(option: Option, variable: str, text: str) -> Given:
    origin = f"environment variable {variable}"
    is_number = _INTEGER.fullmatch(text) is not None and len(text) < len(str(2**64))
    if option.name == "verbose" and is_number:
        level = min(max(int(text), 0), 9)
        return Given(option, None, origin, times=level, cleared=level == 0)
    if option.argument is Argument.NONE or (option.name == _READ_AS_FLAG and text != "expedite"):
        is_set = text == "" or text.lower() == "yes" or (is_number and int(text) != 0)
        return Given(option, None, origin, cleared=not is_set)
    if option.argument is Argument.OPTIONAL and text == "":
        return Given(option, None, origin)
    return Given(option, text, origin)


def merge_options(
    *,
    directives: Sequence[Given] = (),
    environment: Sequence[Given] = (),
    command_line: Sequence[Given] = (),
) -> Options:
    """Return the options that hold, by the precedence of sbatch(1).

    The command line wins over the environment, and the environment over the script's directives;
    within one place the last one wins.

    `--requeue` and `--no-requeue` turn each other off. What sbatch ignores in a script
    (`--verbose`, `--wrap` and the like) is dropped there. Of the memory options one given in the
    script or on the command line turns off the others' variables.

    Raises:
        UsageProblem: Two memory options contradict each other.
    """
    holding: dict[str, tuple[int, Given]] = {}
    directives = [given for given in directives if not given.option.early]
    for place, givens in enumerate((directives, environment, command_line)):
        for given in givens:
            name = given.option.canonical_name
            before_place, before = holding.pop(name, (-1, None))
            if given.cleared:
                continue
            if given.option.cancels:
                holding.pop(given.option.cancels, None)
            if before is not None and before_place == place and given.value is None:
                holding[name] = (place, replace(given, times=before.times + given.times))
            elif given.option.repeats and before is not None and before_place == place:
                holding[name] = (place, replace(given, value=f"{before.value}\n{given.value}"))
            else:
                holding[name] = (place, given)
    environment_place = 1
    memory = [holding[name] for name in _MEMORY_OPTIONS if name in holding]
    explicit = [given for place, given in memory if place != environment_place]
    rivals = explicit or [given for _, given in memory]
    if len(rivals) > 1:
        first, second = rivals[:2]
        raise UsageProblem(
            f"--{first.option.name} ({first.origin}) and --{second.option.name} ({second.origin}) "
            "exclude each other",
            hint="give one of them",
        )
    for place, given in memory:
        if explicit and place == environment_place:
            del holding[given.option.name]
    return Options(tuple(holding[name][1] for name in sorted(holding)))
