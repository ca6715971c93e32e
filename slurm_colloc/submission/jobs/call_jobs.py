"""From a command line, its scripts and their directives to jobs; reads files, submits nothing."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job import ArrayTask, Job
from slurm_colloc.model.result_metrics import parse_metrics
from slurm_colloc.model.sbatch.arrays import ArraySpec, parse_array
from slurm_colloc.model.sbatch.quantities import (
    parse_gpu_memory_mb,
    parse_signal_request,
    parse_time_limit_s,
)
from slurm_colloc.slurm.options import (
    Concern,
    Given,
    Options,
    ParsedLine,
    merge_options,
    parse_command_line,
    read_environment,
)
from slurm_colloc.submission.jobs.captured_environment import capture_environment
from slurm_colloc.submission.jobs.directives import parse_directives
from slurm_colloc.submission.jobs.job_options import (
    choose_least,
    compute_alone_reason,
    compute_group,
    compute_shape,
    parse_option,
    parse_progress_regex,
    parse_retries,
    read_count,
    read_cpus,
    read_gpus,
    read_host_memory_mb,
    read_input,
    read_mail,
    read_open_mode,
    read_option,
    read_output,
    read_slowdown,
    stays_fast,
)
from slurm_colloc.submission.jobs.learn_options import SiteOptions
from slurm_colloc.submission.jobs.output_files import refuse_directories
from slurm_colloc.submission.jobs.scripts import Script, read_call_script, read_pack_words
from slurm_colloc.submission.jobs.value_lists import JOBS_MOST


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A job with what travels alongside it; without the options of one that was stored."""

    job: Job
    script: bytes
    environment: Mapping[str, str]
    options: Options | None = None

    def name_place(self, *names: str) -> str:
        """What to call it where one of these options is wrong: the line or cell of a file.

        That of the first of them that was given, `train.sh:3`; else the script's name.
        """
        origins = (self.options.origin(name) for name in names) if self.options else iter(())
        place = next(filter(None, origins), "")
        return place if ":" in place else self.job.script_name


@dataclasses.dataclass(frozen=True)
class Call:
    """One call of csub.

    Attributes:
        candidates: Its jobs, in the user's order.
        options: The options of the first job; those that concern the call are read here.
        array: `--array`, None without.
        degree: `--degree`, None where not given; the smallest over all jobs.
        shares: The different values of `--share` over all jobs, each with where it was given.
        pack_size: `--pack-size`, None where not given.
        goals: The different values of `--goal` over all jobs, each with where it was given.
        rules: The same of `--policy`.
        gpu_counts: The same of `--gpus-per-pack`; `node_counts` of `--nodes-per-pack`.
        chosen_together: Its user named its scripts one by one (`csub pack`).
    """

    candidates: tuple[Candidate, ...]
    options: Options
    array: ArraySpec | None
    degree: int | None
    shares: tuple[tuple[str, str], ...]
    pack_size: int | None
    goals: tuple[tuple[str, str], ...] = ()
    rules: tuple[tuple[str, str], ...] = ()
    gpu_counts: tuple[tuple[str, str], ...] = ()
    node_counts: tuple[tuple[str, str], ...] = ()
    chosen_together: bool = False


def collect_call(
    argv: Sequence[str], environ: Mapping[str, str], directory: str, *, pack: bool
) -> Call:
    """Read a call.

    Args:
        argv: Arguments behind `csub` or `csub pack`.
        environ: The environment.
        directory: The current directory.
        pack: Every word is a script (`csub pack`), instead of a script and its arguments.

    Raises:
        UsageProblem: Something in it is wrong; the message says what and where.
    """
    site = SiteOptions(environ)
    line = site.parse(lambda options: parse_command_line(argv, site_options=options))
    environment = read_environment(environ)
    early = merge_options(environment=environment, command_line=line.values)
    if pack:
        if early.flag("wrap"):
            raise UsageProblem("csub pack takes scripts, not --wrap")
        if early.flag("array"):
            raise UsageProblem(
                "csub pack takes no --array", hint="csub --array=... SCRIPT packs tasks"
            )
        if not line.words:
            raise UsageProblem("csub pack: no script was given", hint="csub pack a.sh b.sh c.sh")
        scripts = read_pack_words(line.words, directory)
    else:
        scripts = [read_call_script(line.words, early.text("wrap"), directory)]
    merged = [merge_for_script(script, line, environ, site) for script in scripts]
    array = None
    if pack:
        for script, options in zip(scripts, merged, strict=True):
            if options.flag("array"):
                raise UsageProblem(
                    f"{options.origin('array')}: --array cannot be packed by csub pack",
                    hint=f"csub {script.shown} packs the tasks of the array",
                )
        candidates = [
            build_candidate(script, options, environ, directory, number, pack=True)
            for number, (script, options) in enumerate(zip(scripts, merged, strict=True), start=1)
        ]
    else:
        script, options = scripts[0], merged[0]
        text = options.text("array")
        if text is None:
            candidates = [build_candidate(script, options, environ, directory, 1, pack=False)]
        else:
            array = parse_option(options, "array", text, parse_array)
            if len(array.task_ids) > JOBS_MOST:
                raise UsageProblem(
                    f"{options.origin('array')}: --array has {len(array.task_ids)} tasks: one "
                    f"call takes {JOBS_MOST}",
                    hint="give the others in further calls",
                )
            candidates = _build_tasks(script, options, environ, directory, array)
    call = build_call(candidates, *merged, array=array)
    return dataclasses.replace(call, chosen_together=pack)


def build_call(
    candidates: Sequence[Candidate], *merged: Options, array: ArraySpec | None = None
) -> Call:
    """The call of these jobs.

    Args:
        candidates: The jobs, in the user's order.
        merged: The options of each job, or of each kind of them; those of the first come first.
        array: `--array`.
    """
    return Call(
        candidates=tuple(candidates),
        options=merged[0],
        array=array,
        degree=choose_least([read_count(options, "degree") for options in merged]),
        shares=list_values(merged, "share"),
        pack_size=choose_least([read_count(options, "pack-size") for options in merged]),
        goals=list_values(merged, "goal"),
        rules=list_values(merged, "policy"),
        gpu_counts=list_values(merged, "gpus-per-pack"),
        node_counts=list_values(merged, "nodes-per-pack"),
    )


def list_values(merged: Sequence[Options], name: str) -> tuple[tuple[str, str], ...]:
    """The different values of an option over jobs, each with where it was first given."""
    found: dict[str, str] = {}
    for options in merged:
        value = options.text(name)
        if value is not None:
            found.setdefault(value, options.origin(name) or f"--{name}")
    return tuple(found.items())


def merge_for_script(
    script: Script, line: ParsedLine, environ: Mapping[str, str], site: SiteOptions
) -> Options:
    """The options that hold for a script: its directives, the environment, the command line.

    Raises:
        UsageProblem: One is malformed, or csub cannot do it.
    """
    directives: Sequence[Given] = ()
    if not script.is_wrapped:
        directives = site.parse(
            lambda options: parse_directives(
                script.content, name=script.shown, site_options=options
            )
        )
    options = merge_options(
        directives=directives, environment=read_environment(environ), command_line=line.values
    )
    for given in options.select(Concern.REFUSED):
        raise UsageProblem(
            f"{given.origin}: csub does not support --{given.option.name}: {given.option.reason}",
            hint="submit it with sbatch",
        )
    if options.flag("clusters"):
        raise UsageProblem(
            f"{options.origin('clusters')}: csub follows the jobs of one cluster only",
            hint="call it on a login node of the other cluster, or submit with sbatch",
        )
    return options


def _build_tasks(
    script: Script,
    options: Options,
    environ: Mapping[str, str],
    directory: str,
    array: ArraySpec,
) -> list[Candidate]:
    ids = array.task_ids
    first = build_candidate(
        script,
        options,
        environ,
        directory,
        ids[0],
        array_task=ArrayTask(ids[0], len(ids), min(ids), max(ids), array.step),
        pack=False,
    )
    assert first.job.array_task is not None
    return [
        dataclasses.replace(
            first,
            job=dataclasses.replace(
                first.job,
                number=task_id,
                array_task=dataclasses.replace(first.job.array_task, task_id=task_id),
            ),
        )
        for task_id in ids
    ]


def build_candidate(
    script: Script,
    options: Options,
    environ: Mapping[str, str],
    directory: str,
    number: int,
    *,
    pack: bool,
    array_task: ArrayTask | None = None,
) -> Candidate:
    """A job of a script and the options that hold for it.

    Args:
        script: The script.
        options: The options.
        environ: csub's environment.
        directory: The current directory.
        number: The job's number within the call.
        pack: It came with others that may share its GPU.
        array_task: Its place in `--array`.

    Raises:
        UsageProblem: An option has a wrong value; the message says where it stands.
    """
    gpus = read_gpus(options)
    cpus = read_cpus(options, gpus.count)
    gpu_memory = read_option(options, "gpu-mem", parse_gpu_memory_mb)
    chdir = options.text("chdir")
    name = options.text("job-name") or script.name
    job = Job(
        number=number,
        name=name,
        script_name=script.shown,
        arguments=script.arguments,
        directory=os.path.join(directory, chdir) if chdir else directory,
        cpus=cpus,
        host_memory_mb=read_host_memory_mb(options, cpus, gpus.count),
        gpus=gpus.count,
        gpu_type=gpus.type,
        gpu_memory_mb=gpu_memory,
        time_limit_s=read_option(options, "time", parse_time_limit_s),
        output=read_output(options, "output"),
        error=read_output(options, "error"),
        input=read_input(options),
        truncate_output=read_open_mode(options),
        asks_open_mode=options.flag("open-mode"),
        signal=read_option(options, "signal", parse_signal_request),
        requeue=True if options.flag("requeue") else False if options.flag("no-requeue") else None,
        export=options.text("export"),
        array_task=array_task,
        group=compute_group(options, name),
        shape=compute_shape(options),
        alone_because=compute_alone_reason(options, gpus),
        came_together=(
            pack
            or array_task is not None
            or options.flag("degree")
            or options.flag("pack-size")
            or gpu_memory is not None
        ),
        mail=read_mail(options),
        instrument=not options.flag("no-instrument"),
        pause=not options.flag("no-pause"),
        progress_regex=read_option(options, "progress-regex", parse_progress_regex),
        metrics=read_option(options, "metric", parse_metrics) or (),
        profile_like=options.text("profile-like"),
        max_slowdown=read_slowdown(options),
        stays_fast=stays_fast(options),
        retries=read_option(options, "retries", parse_retries) or 0,
        start_together=read_count(options, "start-together") or 0,
    )
    refuse_directories(options, job)
    return Candidate(job, script.content, capture_environment(options, environ), options)
