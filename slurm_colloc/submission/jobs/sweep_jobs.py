"""`csub sweep`: the jobs of a script that differ in their parameters; reads files alone."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Mapping, Sequence

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job import check_parameter_name, check_parameter_value, find_equal_variables
from slurm_colloc.model.late_definitions import dataclass, late_pattern, replace
from slurm_colloc.model.printable import cut
from slurm_colloc.slurm.options import (
    COMMAND_LINE,
    Options,
    merge_options,
    parse_command_line,
    read_environment,
)
from slurm_colloc.submission.jobs.call_jobs import (
    COMMAND_SCRIPT,
    Call,
    Candidate,
    build_call,
    build_candidate,
    merge_for_script,
    read_call_script,
)
from slurm_colloc.submission.jobs.directives import SiteOptions
from slurm_colloc.submission.jobs.job_options import (
    Filler,
    find_placeholders,
    keep_literally,
    read_option,
)
from slurm_colloc.submission.jobs.table_formats import (
    Axis,
    ParameterSetting,
    build_axis,
    combine,
    list_numbers,
    parse_sample,
    parse_table,
    read_table_text,
    split_values,
)

_BEFORE_THE_SCRIPT = ("--zip", "--sample", "--from", "--dry-run")
_ASSIGNED = late_pattern(r"(?as)(--?)?([A-Za-z_][A-Za-z0-9_.-]*)=(.*)")
_FLAG = late_pattern(r"(?a)--?([A-Za-z_][A-Za-z0-9_.-]*)")


@dataclass(frozen=True)
class SweptArguments:
    """The arguments of a sweep's script.

    Attributes:
        words: The arguments; `{lr}` stands where a value goes, braces of the user's are doubled.
        axes: The values, an axis for each list among the arguments.
    """

    words: tuple[str, ...]
    axes: tuple[Axis, ...]


def collect_sweep(argv: Sequence[str], environ: Mapping[str, str], directory: str) -> Call:
    """Read a call of `csub sweep`.

    Args:
        argv: Arguments behind `csub sweep`.
        environ: The environment.
        directory: The current directory.

    Raises:
        UsageProblem: Something in it is wrong; the message says what and where.
    """
    site = SiteOptions(environ)
    line = site.parse(lambda options: parse_command_line(argv, site_options=options))
    early = merge_options(environment=read_environment(environ), command_line=line.values)
    command = early.text("wrap")
    if command is None:
        script = read_call_script(line.words, None, directory)
        swept = read_swept_arguments(script.arguments)
    else:
        if line.words:
            raise UsageProblem(f"--wrap and the script {line.words[0]!r} exclude each other")
        script, swept = COMMAND_SCRIPT, SweptArguments((command,), ())
    if early.flag("array"):
        raise UsageProblem("csub sweep takes no --array", hint="each job of a sweep is a member")
    options = merge_for_script(script, line, environ, site)
    settings = _choose_settings(options, swept, directory)
    _refuse_single_values(swept, {name for setting in settings for name, _ in setting.values})
    base = build_candidate(script, options, environ, directory, 1, pack=True)
    if command is not None or find_placeholders(script.arguments):
        appended = frozenset[str]()
    else:
        # Where the user does not say where the columns of a file go, each is an option.
        in_place = {axis[0].values[0][0] for axis in swept.axes}
        appended = frozenset(n for s in settings for n, _ in s.values if n not in in_place)
    candidates = [
        fill_candidate(
            base, swept.words, setting, number, appended=appended, is_command=command is not None
        )
        for number, setting in zip(list_numbers(len(settings)), settings, strict=True)
    ]
    return build_call(candidates, options)


def read_swept_arguments(arguments: Sequence[str]) -> SweptArguments:
    """Find the lists of values among a script's arguments.

    `--lr 0.1,0.2`, `--lr=0.1,0.2` and `lr=0.1,0.2` name a parameter `lr`; behind `--` nothing is
    a list.

    Raises:
        UsageProblem: A list is malformed, a name is given twice, or an option of csub's own
            stands behind the script.
    """
    words: list[str] = []
    axes: list[Axis] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            words += [word, *map(keep_literally, rest)]
            break
        if word.partition("=")[0] in _BEFORE_THE_SCRIPT:
            raise UsageProblem(
                f"{word} stands behind the script, where its arguments are",
                hint=f"csub sweep {word} ... SCRIPT ...; behind -- it is an argument",
            )
        assigned, flag = _ASSIGNED.fullmatch(word), _FLAG.fullmatch(word)
        if assigned:
            axis = _read_axis(assigned[2], assigned[3])
            axes += [axis] if axis else []
            words.append(f"{word[: assigned.start(3)]}{{{assigned[2]}}}" if axis else word)
        elif flag and rest and not _FLAG.fullmatch(rest[0]):
            following = rest.pop(0)
            axis = _read_axis(flag[1], following)
            axes += [axis] if axis else []
            words += [word, f"{{{flag[1]}}}" if axis else following]
        else:
            words.append(word)
    return SweptArguments(tuple(words), tuple(axes))


def _read_axis(name: str, text: str) -> Axis | None:
    """The axis of an argument; None where it has one value."""
    try:
        values = split_values(text)
        if len(values) < 2:
            return None
        check_parameter_name(name)
    except ValueError as error:
        raise UsageProblem(f"--{name}: {cut(text)!r} {error}") from error
    return build_axis(name, values, COMMAND_LINE)


def _refuse_single_values(swept: SweptArguments, names: Collection[str]) -> None:
    """Refuse a placeholder that is meant for an argument with a single value.

    Raises:
        UsageProblem: There is one, which says how several values are written.
    """
    values = dict(itertools.pairwise(swept.words))
    for name in find_placeholders(swept.words):
        if name not in names and f"--{name}" in values:
            value = values[f"--{name}"]
            raise UsageProblem(
                f"--{cut(name)} {cut(value)} is a single value, not one for {{{cut(name)}}}",
                hint=f"several are --{cut(name)} 1,2,3 or --{cut(name)} 1:4, which is the same",
            )


def _choose_settings(
    options: Options, swept: SweptArguments, directory: str
) -> list[ParameterSetting]:
    axes = list(swept.axes)
    shown = options.text("from")
    if shown is not None:
        axes = [*parse_table(read_table_text(shown, directory), os.path.basename(shown)), *axes]
    if not axes:
        raise UsageProblem(
            "there is nothing to sweep: no argument has several values",
            hint="csub sweep train.sh --lr 0.1,0.2 --seed 0:5, or csub sweep --from=params.csv",
        )
    settings = combine(
        axes,
        zipped=options.flag("zip"),
        sample=read_option(options, "sample", parse_sample),
    )
    check_settings(settings)
    return settings


def check_settings(settings: Sequence[ParameterSetting]) -> None:
    """Refuse what can be no parameter.

    Raises:
        UsageProblem: A name or value is none, or two names would be one variable.
    """
    for names in {tuple(name for name, _ in setting.values): setting for setting in settings}:
        equal = find_equal_variables(names)
        if equal is not None:
            raise UsageProblem(
                f"{settings[0].place}: the parameters {cut(equal[0])} and {cut(equal[1])} would be "
                "one variable in the environment",
                hint="rename one",
            )
    good: set[str] = set()
    for setting in settings:
        for name, value in setting.values:
            try:
                if name not in good:
                    check_parameter_name(name)
                    good.add(name)
            except ValueError as error:
                raise UsageProblem(f"{setting.place}: {cut(name)!r} {error}") from error
            try:
                check_parameter_value(value)
            except ValueError as error:
                raise UsageProblem(f"{setting.place}: the value of {name} {error}") from error


def fill_candidate(
    base: Candidate,
    words: Sequence[str],
    setting: ParameterSetting,
    number: int,
    *,
    appended: Collection[str] = (),
    also_taken: Collection[str] = (),
    is_command: bool = False,
) -> Candidate:
    """A job with its parameters where placeholders take them.

    Args:
        base: The job without them.
        words: Its arguments, with placeholders.
        setting: Its parameters.
        number: Its number within the call.
        appended: Parameters that become options behind the arguments.
        also_taken: Parameters that were taken elsewhere.
        is_command: The arguments are a command for a shell.

    Raises:
        UsageProblem: A placeholder names no parameter, or no placeholder takes a parameter.
    """
    filler = Filler(dict(setting.values), setting.place)
    arguments = [filler.fill(word, quoted=is_command) for word in words]
    job = filler.fill_job(base.job)
    for name, value in setting.values:
        if name in appended:
            arguments += [f"--{name}", value]
        elif name not in filler.taken and name not in also_taken:
            raise UsageProblem(
                f"{setting.place}: no placeholder takes the parameter {cut(name)}",
                hint=f"write {{{cut(name)}}} where its value goes, or leave it out",
            )
    job = replace(job, number=number, parameters=setting.values, arguments=tuple(arguments))
    return replace(base, job=job)
