"""What csub and the runner ask of Slurm, over Slurm's own commands."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence

from slurm_colloc.errors import SlurmError, SlurmNoAnswer, SlurmRefused
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.slurm.output_formats import (
    NODE_FORMAT,
    QUEUE_FORMAT,
    NodeShape,
    SlurmJob,
    compute_element_states,
    has_merged_reasons,
    parse_accounting,
    parse_job_fields,
    parse_moment,
    parse_nodes,
    parse_queue,
)
from slurm_colloc.slurm.run_command import (
    HINT_AFTER_NO_ANSWER,
    QUERY_TIMEOUT_S,
    SUBMIT_TIMEOUT_S,
    HeldInterrupts,
    build_client_environment,
    run_slurm,
)


class SlurmCommands:
    """Slurm over sbatch, squeue, sinfo, scontrol, scancel and sacct.

    Args:
        environment: Environment of the commands; None for the user's, filtered.
        uid: Whose jobs are listed; None for the caller's.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, *, uid: int | None = None
    ) -> None:
        self._environment = environment
        self._uid = uid

    def submit(
        self,
        script: str,
        options: Sequence[str],
        *,
        environment: Mapping[str, str],
        directory: str,
        inherited: Sequence[int] = (),
        held: HeldInterrupts | None = None,
    ) -> str:
        """Submit a batch script; returns the job id.

        Args:
            script: Path of the script.
            options: Options of sbatch.
            environment: Environment of sbatch, which is also what the job gets.
            directory: The submission directory.
            inherited: Descriptors that sbatch keeps open until it ends.
            held: Interrupts that are held back meanwhile.

        Raises:
            SlurmRefused, SlurmUnreachable: See run_slurm.
        """
        output = run_slurm(
            ["sbatch", "--parsable", *options, script],
            environment=environment,
            timeout_s=SUBMIT_TIMEOUT_S,
            inherited=inherited,
            held=held,
            directory=directory,
        )
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
        """scancel: TERM to everything in the jobs, KILL after KillWait."""
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
