"""What csub and the runner ask of Slurm, over Slurm's own commands.

Also: reading what Slurm's commands print, 22.05 to 26.05; what csub and the runner may ask of
Slurm: one interface, whatever answers; nodes one by one; which Slurm cluster this machine's
commands belong to.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence

from slurm_colloc.errors import SlurmError, SlurmNoAnswer, SlurmRefused
from slurm_colloc.model.comment_token import is_of_submission
from slurm_colloc.model.late_definitions import dataclass, late_pattern, replace
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.model.quantities import parse_time_limit_s
from slurm_colloc.slurm.real_command import find_real_command
from slurm_colloc.slurm.run_command import (
    HINT_AFTER_NO_ANSWER,
    QUERY_TIMEOUT_S,
    SUBMIT_TIMEOUT_S,
    HeldInterrupts,
    build_client_environment,
    run_slurm,
)

# ---- Reading what Slurm's commands print, 22.05 to 26.05; pure functions -------------------------

QUEUE_FORMAT = "%i|%F|%T|%M|%L|%V|%N|%r|%k"
"""squeue -o: id, array id, state, time used, time left, submit time, nodes, reason, comment."""

NODE_FORMAT = "%P|%c|%m|%G|%l|%L|%h"
"""sinfo -o: partition, a node's CPUs, memory (MB) and GRES, MaxTime, DefaultTime, OverSubscribe."""


@dataclass(frozen=True)
class SlurmJob:
    """A Slurm job, or one element of an array, as squeue shows it.

    Attributes:
        job_id: `4711` or `4711_2`; `4711_[3-9%2]` for elements that squeue keeps folded.
        state: Its state.
        time_used: As squeue prints it.
        time_left: As squeue prints it.
        nodes: Its node list, empty while it waits.
        reason: Why it waits.
        comment: Its comment.
    """

    job_id: str
    state: SlurmJobState
    time_used: str
    time_left: str
    nodes: str
    reason: str
    comment: str


_JOB_ID = late_pattern(r"(?a)\d+(?:\+\d+)?(?:_(?:\d+|\[.*\]))?")


def parse_queue(text: str) -> list[SlurmJob]:
    """Read the lines of squeue with QUEUE_FORMAT; lines of another shape are skipped.

    A comment comes last, and as its user wrote it: with line breaks, and with what Python takes
    for some (U+2028 and others).
    """
    jobs: list[SlurmJob] = []
    for line in text.removesuffix("\n").split("\n"):
        fields = line.split("|", 8)
        if len(fields) < 9 or not _JOB_ID.fullmatch(fields[0]):
            if jobs:
                jobs[-1] = replace(jobs[-1], comment=f"{jobs[-1].comment}\n{line}")
        else:
            jobs.append(
                SlurmJob(
                    job_id=fields[0],
                    state=SlurmJobState.parse(fields[2]),
                    time_used=fields[3],
                    time_left=fields[4],
                    nodes="" if fields[6] == "(null)" else fields[6],
                    reason="" if fields[7] == "None" else fields[7],
                    comment="" if fields[8] == "(null)" else fields[8],
                )
            )
    return jobs


@dataclass(frozen=True)
class NodeShape:
    """A kind of node in a partition, as sinfo shows it.

    Attributes:
        partition: The partition.
        is_default: It is the partition of jobs that name none.
        cpus: CPUs of a node.
        host_memory_mb: Its memory.
        gpus: Its GPUs, as type and number; the type is None where Slurm gives none.
        time_limit_max_s: MaxTime of the partition; None for no limit.
        time_limit_default_s: Its DefaultTime; None for none.
        is_given_whole: A job there gets whole nodes (OverSubscribe=EXCLUSIVE).
    """

    partition: str
    is_default: bool
    cpus: int
    host_memory_mb: int
    gpus: tuple[tuple[str | None, int], ...]
    time_limit_max_s: int | None
    time_limit_default_s: int | None
    is_given_whole: bool = False


_GPU = late_pattern(r"gpu(?::(?P<type>[^:(),]+(?=:)))?:(?P<count>\d+)(?:\([^)]*\))?")


def parse_nodes(text: str) -> list[NodeShape]:
    """Read the lines of sinfo with NODE_FORMAT; lines of another shape are skipped."""
    shapes = []
    for line in text.split("\n"):
        fields = line.strip().split("|")
        if len(fields) not in (6, 7):
            continue
        try:
            cpus, host_memory_mb = int(fields[1].rstrip("+")), int(fields[2].rstrip("+"))
        except ValueError:
            continue
        if cpus == 0:
            # A partition with none of the nodes that were asked for.
            continue
        shapes.append(
            NodeShape(
                partition=fields[0].rstrip("*"),
                is_default=fields[0].endswith("*"),
                cpus=cpus,
                host_memory_mb=host_memory_mb,
                gpus=tuple((m["type"], int(m["count"])) for m in _GPU.finditer(fields[3])),
                time_limit_max_s=_parse_partition_time_s(fields[4]),
                time_limit_default_s=_parse_partition_time_s(fields[5]),
                is_given_whole=fields[6:] == ["EXCLUSIVE"],
            )
        )
    return shapes


def _parse_partition_time_s(text: str) -> int | None:
    try:
        return parse_time_limit_s(text)
    except ValueError:
        return None


def parse_job_fields(text: str) -> dict[str, str]:
    """Read `scontrol show job -o`: fields without blanks in their values, first one wins."""
    fields: dict[str, str] = {}
    for word in text.split():
        name, separator, value = word.partition("=")
        if separator:
            fields.setdefault(name, value)
    return fields


def expand_node_list(text: str) -> list[str]:
    """The nodes of a list as Slurm writes it: `n[1-2,07],gpu3`, also with several brackets.

    Args:
        text: The list. What is written in another way stands for itself.
    """
    names: list[str] = []
    for word in _NODE_WORD.findall(text):
        found = [""]
        for plain, ranges in _NODE_PART.findall(word):
            ends = [plain] if plain else _expand_ranges(ranges)
            found = [f"{name}{end}" for name in found for end in ends]
        names += found
    return names


def _expand_ranges(text: str) -> list[str]:
    """`1-3,07` as numbers, with the zeros that the first one has."""
    found: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if dash and first.isdecimal() and last.isdecimal():
            found += (f"{n:0{len(first)}d}" for n in range(int(first), int(last) + 1))
        else:
            found.append(part)
    return found


_NODE_WORD = late_pattern(r"(?:[^,\[\]]|\[[^\]]*\])+")
_NODE_PART = late_pattern(r"([^\[\]]+)|\[([^\]]*)\]")


def parse_moment(text: str) -> float | None:
    """Read a time as scontrol and sacct print it, in local time: `2026-11-21T10:01:07`.

    Returns:
        Seconds since the epoch; None for `Unknown` and for what is no time.
    """
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except (OverflowError, ValueError):
        return None


def parse_accounting(text: str) -> dict[str, SlurmJobState]:
    """Read `sacct -n -P -X -o JobID,State`."""
    states = {}
    for line in text.split("\n"):
        job_id, separator, state = line.partition("|")
        if separator:
            states[job_id] = SlurmJobState.parse(state)
    return states


_TASKS = late_pattern(r"(\d+)_\[([^\]%]+)(?:%\d+)?\]")


_MERGED = late_pattern(r",(?=\S)")


def has_merged_reasons(job: SlurmJob) -> bool:
    """Whether a row of squeue may stand for elements that wait for different reasons.

    squeue folds waiting elements, and lists their reasons: `Resources,JobHeldUser`.
    """
    return _TASKS.fullmatch(job.job_id) is not None and _MERGED.search(job.reason) is not None


def compute_element_states(jobs: list[SlurmJob]) -> dict[str, SlurmJob]:
    """Index squeue's rows by element id, with folded pending elements spelled out."""
    index: dict[str, SlurmJob] = {}
    for job in jobs:
        folded = _TASKS.fullmatch(job.job_id)
        if not folded:
            index[job.job_id] = job
            continue
        for name in list_elements(folded[1], folded[2]):
            index[name] = replace(job, job_id=name)
    return index


def list_elements(job_id: str, tasks: str) -> Iterator[str]:
    """The ids of a job array's elements: `4711_1` and `4711_3` of `1-3:2`, as Slurm folds them."""
    for part in tasks.partition("%")[0].split(","):
        bounds = part.split(":")[0].split("-")
        if all(bound.isdigit() for bound in bounds):
            step = int(part.split(":")[1]) if ":" in part else 1
            for task in range(int(bounds[0]), int(bounds[-1]) + 1, step):
                yield f"{job_id}_{task}"


def find_job_of(jobs: Mapping[str, SlurmJob], job_id: str, submission: str) -> SlurmJob | None:
    """What squeue shows of a submission's job; None where it shows none, or one of another pack.

    A controller that was killed may have lost its newest jobs, and give their ids again.

    Args:
        jobs: What squeue shows.
        job_id: The job, or its element of an array.
        submission: The submission's id.
    """
    job = jobs.get(job_id)
    return None if job is None or is_of_submission(job.comment, submission) is False else job


def find_marked(
    jobs: Mapping[str, SlurmJob], submission: str, index: int | None
) -> dict[str, SlurmJobState]:
    """The Slurm jobs of a pack by their comment, however they were submitted, with their states.

    Args:
        jobs: What squeue shows.
        submission: The submission's id.
        index: The pack's element of an array; None where it is none.
    """
    return {
        job_id: job.state
        for job_id, job in jobs.items()
        if is_of_submission(job.comment, submission)
        and (index is None or job_id.partition("_")[2] == str(index))
    }


def compute_hidden_state(jobs: Mapping[str, SlurmJob], job_id: str) -> SlurmJobState:
    """State of a job that squeue does not show by its id.

    Where the elements of an array are cancelled one by one before they start, Slurm keeps one
    record of the array without a task id (seen on 22.05).
    """
    base, separator, _ = job_id.partition("_")
    whole = jobs.get(base) if separator else None
    return SlurmJobState.ABSENT if whole is None else whole.state


# ---- What csub and the runner ask of Slurm, over Slurm's own commands ----------------------------


class SlurmAccess:
    """Questions to Slurm and what is done with its jobs: sbatch, squeue, scontrol, scancel, sacct.

    `PyslurmAccess` answers some questions without a process for each. Both give equal answers and
    raise equal errors: SlurmRefused with Slurm's words, SlurmUnreachable where nothing was changed,
    SlurmNoAnswer where it may have been.

    Args:
        environment: Environment of the commands; None for the user's, filtered.
        uid: Whose jobs are listed; None for the caller's.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, *, uid: int | None = None
    ) -> None:
        self._environment = environment
        self._uid = uid
        self.notices: dict[str, None] = {}
        """What sbatch has said of jobs that it took, each line once: by a site's plugin, as a rule
        (job_submit_lua's log_user), or a warning."""

    def submit(
        self,
        script: str,
        options: Sequence[str],
        *,
        environment: Mapping[str, str],
        directory: str,
        inherited: Sequence[int] = (),
        held: HeldInterrupts | None = None,
        timeout_s: float = SUBMIT_TIMEOUT_S,
    ) -> str:
        """Submit a batch script with sbatch, so with the site's plugins; returns the job id.

        Args:
            script: Path of the script.
            options: Options of sbatch.
            environment: Environment of sbatch, which is also what the job gets.
            directory: The submission directory.
            inherited: Descriptors that sbatch keeps open until it ends.
            held: Interrupts that are held back meanwhile.
            timeout_s: When to give up.

        Raises:
            SlurmRefused, SlurmUnreachable: See run_slurm.
        """
        output = run_slurm(
            ["sbatch", "--parsable", *options, script],
            environment=environment,
            timeout_s=timeout_s,
            inherited=inherited,
            held=held,
            directory=directory,
        )
        lines = (line.strip().removeprefix("sbatch: ") for line in output.stderr.split("\n"))
        self.notices.update(dict.fromkeys(line for line in lines if line))
        return parse_submitted(output.stdout)

    def check(
        self,
        script: str,
        options: Sequence[str],
        *,
        environment: Mapping[str, str],
        directory: str,
        timeout_s: float = QUERY_TIMEOUT_S,
    ) -> str:
        """`sbatch --test-only`: what Slurm says of a request that is not submitted."""
        output = run_slurm(
            ["sbatch", "--test-only", *options, script],
            environment=environment,
            timeout_s=timeout_s,
            directory=directory,
        )
        return (output.stderr or output.stdout).strip().removeprefix("sbatch: ")

    def list_jobs(self) -> dict[str, SlurmJob]:
        """All jobs of the user that Slurm still shows, by id or element id; one question."""
        rows = self._ask_queue()
        jobs = compute_element_states(rows)
        if any(has_merged_reasons(row) for row in rows):
            each = compute_element_states(self._ask_queue("--array"))
            jobs |= {name: job for name, job in each.items() if name in jobs}
        return jobs

    def _ask_queue(self, *options: str) -> list[SlurmJob]:
        environment = self._environment
        whose = "--me" if self._uid is None else f"--user={self._uid}"
        chosen = ("--noheader", whose, "--all", "--states=all", *options)
        output = run_slurm(
            ["squeue", *chosen, f"--format={QUEUE_FORMAT}"],
            environment={
                **(build_client_environment(os.environ) if environment is None else environment),
                # Waiting tasks of an array come folded and whole: `squeue --array` leaves out the
                # last one of `0-12:2` (22.05 to 26.05), and without this they are cut short.
                "SLURM_BITSTR_LEN": "0",
            },
        ).stdout
        return parse_queue(output)

    def list_dependencies(self) -> list[str]:
        """What the user's waiting jobs wait for, as squeue shows it; one question."""
        whose = "--me" if self._uid is None else f"--user={self._uid}"
        output = self._run("squeue", "--noheader", whose, "--states=PENDING", "--format=%E")
        return [line for line in output.splitlines() if line.strip() not in ("", "(null)")]

    def list_nodes(self, nodes: str | None = None) -> list[NodeShape]:
        """The kinds of nodes of all partitions, or of the nodes of a node list alone."""
        chosen = [f"--nodes={nodes}"] if nodes else []
        return parse_nodes(
            self._run("sinfo", "--noheader", "--exact", f"--format={NODE_FORMAT}", *chosen)
        )

    def read_job(self, job_id: str) -> dict[str, str] | None:
        """The fields of `scontrol show job`; None if Slurm does not know it any more."""
        try:
            return parse_job_fields(self._run("scontrol", "--oneliner", "show", "job", job_id))
        except SlurmRefused:
            return None

    def read_elements(self, job_id: str) -> dict[str, dict[str, str]]:
        """The same of a job, or of all elements of an array of which one is named, by their ids."""
        found: dict[str, dict[str, str]] = {}
        with contextlib.suppress(SlurmRefused):
            name = job_id.partition("_")[0]
            for line in self._run("scontrol", "--oneliner", "show", "job", name).splitlines():
                fields = parse_job_fields(line)
                tasks = list_elements(name, fields.get("ArrayTaskId", ""))
                found |= dict.fromkeys([fields.get("JobId", ""), *tasks], fields)
        return found

    def read_accounting(self, job_ids: Sequence[str]) -> dict[str, SlurmJobState]:
        """States of jobs that the controller has forgotten; empty where nothing is accounted."""
        if not job_ids:
            return {}
        try:
            return parse_accounting(
                self._run(
                    "sacct", "-n", "-P", "-X", "-o", "JobID%64,State", "-j", ",".join(job_ids)
                )
            )
        except SlurmError:
            return {}

    def read_end_time(self, job_id: str) -> float | None:
        """When a job ended: the controller's word, or else the accounting's.

        Returns:
            Seconds since the epoch; None where neither knows it.
        """
        with contextlib.suppress(SlurmError):
            text = (self.read_job(job_id) or {}).get("EndTime", "")
            if not text:
                text = self._run("sacct", "-n", "-P", "-X", "-o", "End", "-j", job_id).strip()
            return parse_moment(text)
        return None

    def cancel(self, *job_ids: str) -> None:
        """scancel: TERM to everything in the jobs, KILL after KillWait.

        pyslurm's `Job.cancel()` is another thing: SIGKILL at once.
        """
        self._run("scancel", *job_ids)

    def update_job(
        self, job_id: str, changes: Mapping[str, str], *, inherited: Sequence[int] = ()
    ) -> None:
        """Change a job in one `scontrol update`; Slurm may refuse one value and take the others.

        Args:
            job_id: A job or an array's element (`4711_2`).
            changes: New values by scontrol's names: `NumCPUs`, `MinMemoryNode`, `TimeLimit`.
            inherited: Descriptors that scontrol keeps open until it ends.

        Raises:
            SlurmRefused: With Slurm's words.
            SlurmNoAnswer: The change may be done all the same.
        """
        if changes:
            words = [f"{name}={value}" for name, value in changes.items()]
            run_slurm(
                ["scontrol", "update", f"JobId={job_id}", *words],
                environment=self._environment,
                inherited=inherited,
            )

    def hold(self, job_id: str) -> None:
        """Keep a pending job from starting."""
        self._run("scontrol", "hold", job_id)

    def release(self, job_id: str) -> None:
        """Let a held job start again."""
        self._run("scontrol", "release", job_id)

    def requeue(self, job_id: str) -> None:
        """End a running job and put it back into the queue."""
        self._run("scontrol", "requeue", job_id)

    def requeue_running(self, job_id: str) -> None:
        """The same, in the one moment that Slurm takes for it only where the job runs.

        Slurm does nothing, and says nothing, with a job that is being cancelled or ended
        (`_job_requeue_op`, 22.05 to 26.05).
        """
        self._run("scontrol", "requeue", "Incomplete", job_id)

    def wake_batch_script(self, job_id: str) -> None:
        """Send SIGURG to the batch script alone: ignored by a script that does not wait for it."""
        self._run("scancel", "--batch", "--signal=URG", job_id)

    def signal_steps(self, steps: Sequence[str], signal: int) -> None:
        """Send a signal to job steps."""
        self._run("scancel", f"--signal={signal}", *steps)

    def end_steps(self, steps: Sequence[str]) -> None:
        """SIGKILL to job steps, at once."""
        self._run("scancel", *steps)

    def list_steps(self, job_id: str) -> list[tuple[str, str]]:
        """Running steps of a job as (step id, name)."""
        output = self._run("squeue", "--noheader", "--steps", f"--jobs={job_id}", "--format=%i|%j")
        rows = [line.strip().partition("|") for line in output.split("\n")]
        return [(step, name) for step, separator, name in rows if separator]

    def read_config(self) -> dict[str, str]:
        """The values of `scontrol show config`."""
        pairs = (
            line.partition("=") for line in self._run("scontrol", "show", "config").split("\n")
        )
        return {name.strip(): value.strip() for name, separator, value in pairs if separator}

    def read_federation(self) -> str:
        """The name of the federation that the cluster is in; empty for none."""
        first = self._run("scontrol", "show", "federation").partition("\n")[0]
        return first.partition(":")[2].strip()

    def read_partition(self, name: str) -> dict[str, str]:
        """The fields of `scontrol show partition`."""
        return parse_job_fields(self._run("scontrol", "--oneliner", "show", "partition", name))

    def _run(self, *argv: str) -> str:
        return run_slurm(argv, environment=self._environment).stdout


def parse_submitted(text: str) -> str:
    """Read `sbatch --parsable`: `4711` or `4711;cluster`.

    Raises:
        SlurmNoAnswer: There is no job id in it.
    """
    lines = text.strip().split("\n")
    job_id = lines[-1].partition(";")[0].strip() if lines else ""
    if not job_id.isdigit():
        raise SlurmNoAnswer(
            f"sbatch answered {text.strip()!r} instead of a job id", hint=HINT_AFTER_NO_ANSWER
        )
    return job_id


# ---- Nodes one by one, and the version of the commands -------------------------------------------

NODE_STATE_FORMAT = "%N|%P|%T|%G|%v|%E"
"""sinfo -N -o: node, partition, state, GRES, slurmd's version, why it is down or drained."""

# sinfo puts a mark behind a state: `~` for a node that is off. One that does not
# answer has `*`, and gets no job.
_USABLE = late_pattern(
    r"(idle|mixed|allocated|completing|planned|blocked|reserved|powering_up|powered_down|powering_down)"
    r"[~#%+@^-]*"
)


@dataclass(frozen=True)
class NodeState:
    """A node of a partition, as sinfo shows it.

    Attributes:
        name: Its name.
        partition: The partition.
        is_default: It is the partition of jobs that name none.
        state: Its state, in small letters, with sinfo's mark.
        gpus: How many GPUs Slurm gives from it.
        version: Of its slurmd; empty where Slurm does not know it.
        reason: Why it is down or drained; empty for nothing.
    """

    name: str
    partition: str
    is_default: bool
    state: str
    gpus: int
    version: str
    reason: str

    @property
    def is_usable(self) -> bool:
        """It takes jobs, now or when it becomes free."""
        return _USABLE.fullmatch(self.state) is not None


def list_node_states() -> list[NodeState]:
    """All nodes of all partitions; one question.

    Raises:
        SlurmError: Slurm does not answer.
    """
    argv = ["sinfo", "--noheader", "--all", "--Node", "--exact", f"--format={NODE_STATE_FORMAT}"]
    return parse_node_states(run_slurm(argv).stdout)


def parse_node_states(text: str) -> list[NodeState]:
    """Read the lines of sinfo with NODE_STATE_FORMAT; lines of another shape are skipped."""
    found = []
    for line in text.split("\n"):
        fields = line.strip().split("|", 5)
        if len(fields) != 6:
            continue
        name, partition, state, gres, version, reason = fields
        # A node without CPUs would be none of the partition's.
        shapes = parse_nodes(f"{partition}|1|0|{gres}|n/a|n/a")
        found.append(
            NodeState(
                name,
                partition.rstrip("*"),
                partition.endswith("*"),
                state.lower(),
                sum(count for shape in shapes for _, count in shape.gpus),
                version if re.match(r"\d", version) else "",
                "" if reason in ("none", "None", "(null)") else reason,
            )
        )
    return found


def count_gpus(states: Sequence[NodeState], partitions: str | None) -> int | None:
    """GPUs of the usable nodes of a comma separated list of partitions, of any type.

    Args:
        states: All nodes.
        partitions: The value of `--partition`; None for the default partition.

    Returns:
        How many; None where there are none.
    """
    names = set(partitions.split(",")) if partitions else None
    gpus = {
        state.name: state.gpus
        for state in states
        if state.is_usable and (state.is_default if names is None else state.partition in names)
    }
    return sum(gpus.values()) or None


def read_client_version() -> str:
    """The version of the commands here, `22.05.8`; empty where they say something else.

    Raises:
        SlurmError: They cannot be run.
    """
    words = run_slurm(["sinfo", "--version"]).stdout.split()
    return words[-1] if words else ""


# ---- Which Slurm cluster this machine's commands belong to ---------------------------------------
#
# A home directory may serve several clusters, whose job ids mean different jobs.

_CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
"""Where it lies by default, and where slurmd keeps it on configless clusters (slurm.conf(5))."""


def read_cluster_name(environ: Mapping[str, str]) -> str:
    """ClusterName of slurm.conf, in small letters as Slurm itself has it.

    Args:
        environ: The environment; SLURM_CONF names the file.

    Returns:
        Empty where it cannot be read: a site may have built Slurm with another place for it.
    """
    named = environ.get("SLURM_CONF")
    for path in (named,) if named else _CONFIGURATIONS:
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs a submission 3 ms
                for line in file:
                    name, separator, value = line.partition(b"=")
                    if separator and name.strip().lower() == b"clustername":
                        return os.fsdecode(value.split(b"#")[0].strip()).lower()
        except OSError:
            continue
    return ""


def describe_client(environ: Mapping[str, str]) -> str:
    """What the answer of Slurm's commands here depends on: the host and which commands they are.

    Returns:
        Empty where there are none.
    """
    program = find_real_command("scontrol", environ.get("PATH"))
    if program is None:
        return ""
    return f"{os.uname().nodename}:{os.path.realpath(program)}:{environ.get('SLURM_CONF', '')}"


def ask_cluster_name() -> str:
    """ClusterName as the controller says it; empty where it does not answer."""
    try:
        lines = run_slurm(["scontrol", "show", "config"]).stdout.split("\n")
    except SlurmError:
        return ""
    for name, _, value in (line.partition("=") for line in lines):
        if name.strip() == "ClusterName":
            return value.strip().lower()
    return ""
