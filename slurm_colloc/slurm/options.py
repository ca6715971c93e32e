"""Command lines of csub, sbatch and srun, sbatch's input variables, and how they are merged.

Also: the options that srun has and sbatch has not, and all that srun takes; the rules of
getopt_long(3) over a table of options, with messages that name the place.

Here it is known which options there are and whether they take a value; what the values mean is
for others to say. Everything here is pure. Every failure is a `UsageProblem`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.late_definitions import dataclass, late_pattern, replace
from slurm_colloc.slurm.option_table import (
    OWN_OPTIONS,
    REMOVED_OPTIONS,
    SBATCH_OPTIONS,
    Argument,
    Concern,
    Option,
)

# ---- The options that srun has and sbatch has not, and all that srun takes -----------------------

_NO = Argument.NONE
_REQ = Argument.REQUIRED
_OPT = Argument.OPTIONAL


def _step(name: str, short: str | None, argument: Argument, *, since: str | None = None) -> Option:
    return Option(name, short, argument, Concern.STEP, srun=True, since=since)


SRUN_ONLY: tuple[Option, ...] = (
    _step("accel-bind", None, _REQ),
    _step("async", None, _NO, since="26.05"),
    _step("bcast", None, _OPT),
    _step("bcast-exclude", None, _REQ),
    _step("compress", None, _OPT),
    _step("cpu-bind", None, _REQ),
    Option("cpu_bind", None, _REQ, Concern.STEP, srun=True, alias_of="cpu-bind"),
    _step("debugger-test", None, _NO),
    _step("disable-status", "X", _NO),
    _step("epilog", None, _REQ),
    _step("exact", None, _NO),
    _step("external-launcher", None, _OPT, since="23.11"),
    _step("het-group", None, _REQ),
    Option("pack-group", None, _REQ, Concern.STEP, srun=True, alias_of="het-group"),
    _step("ignore-signals", None, _REQ, since="26.05"),
    _step("immediate", "I", _OPT),
    _step("interactive", None, _NO),
    _step("jobid", None, _REQ),
    _step("kill-on-bad-exit", "K", _OPT),
    _step("label", "l", _NO),
    _step("mpi", None, _REQ),
    _step("msg-timeout", None, _REQ),
    _step("multi-prog", None, _NO),
    _step("no-allocate", "Z", _NO),
    _step("overlap", None, _OPT),
    _step("preserve-env", "E", _NO),
    _step("prolog", None, _REQ),
    _step("pty", None, _OPT),
    _step("quit-on-interrupt", None, _NO),
    _step("relative", "r", _REQ),
    _step("send-libs", None, _OPT),
    _step("slurmd-debug", None, _REQ),
    _step("task-epilog", None, _REQ),
    _step("task-prolog", None, _REQ),
    _step("threads", "T", _REQ),
    _step("treewidth", None, _REQ, since="23.11"),
    _step("unbuffered", "u", _NO),
    # To sbatch --wait is a flag, to srun a number of seconds.
    _step("wait", "W", _REQ),
    _step("wait-for-children", None, _NO, since="25.05"),
    _step("whole", None, _NO),
)

SRUN_OPTIONS: tuple[Option, ...] = (
    *(option for option in SBATCH_OPTIONS if option.srun),
    *SRUN_ONLY,
)
"""All that srun takes."""


# ---- The rules of getopt_long(3) over a table of options, with messages that name the place ------


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

        if name in REMOVED_OPTIONS:
            return self._problem(word, f"--{name} was removed: {REMOVED_OPTIONS[name]}")
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


# ---- Command lines of csub, sbatch and srun, sbatch's input variables, and how they are merged ---

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

_INTEGER = late_pattern(r"(?a)\s*[+-]?\d+")
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
    kind = "sbatch or csub" if own else "sbatch"
    parser = OptionParser(sbatch, OWN_OPTIONS if own else (), kind=kind, located=True)
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
