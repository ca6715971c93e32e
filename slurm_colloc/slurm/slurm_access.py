"""What csub and the runner may ask of Slurm: one interface, whatever answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.slurm.output_formats import NodeShape, SlurmJob
from slurm_colloc.slurm.run_command import QUERY_TIMEOUT_S, HeldInterrupts


class SlurmAccess(Protocol):
    """Questions to Slurm and what is done with its jobs.

    `SlurmCommands` is the one that is always there; `PyslurmAccess` answers some questions without
    a process for each. Both give equal answers and raise equal errors: SlurmRefused with Slurm's
    words, SlurmUnreachable where nothing was changed, SlurmNoAnswer where it may have been.
    """

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
        """Submit a batch script; returns the job id. Always sbatch, with the site's plugins."""

    def check(
        self,
        script: str,
        options: Sequence[str],
        *,
        environment: Mapping[str, str],
        directory: str,
        timeout_s: float = QUERY_TIMEOUT_S,
    ) -> str:
        """What Slurm says of a request that is not submitted. Always `sbatch --test-only`."""

    def list_jobs(self) -> dict[str, SlurmJob]:
        """All jobs of the user that Slurm still shows, by id or element id; one question."""

    def list_dependencies(self) -> list[str]:
        """What the user's waiting jobs wait for, as squeue shows it; one question."""

    def list_nodes(self, nodes: str | None = None) -> list[NodeShape]:
        """The kinds of nodes of all partitions, or of the nodes of a node list alone."""

    def read_job(self, job_id: str) -> dict[str, str] | None:
        """The fields of a job by scontrol's names; None if Slurm does not know it any more."""

    def read_accounting(self, job_ids: Sequence[str]) -> dict[str, SlurmJobState]:
        """States of jobs that the controller has forgotten; empty where nothing is accounted."""

    def read_end_time(self, job_id: str) -> float | None:
        """When a job ended, in seconds since the epoch; None where Slurm does not know it."""

    def cancel(self, *job_ids: str) -> None:
        """End jobs as scancel does: TERM to everything in them, KILL after KillWait.

        pyslurm's `Job.cancel()` is another thing: SIGKILL at once.
        """

    def update_job(
        self, job_id: str, changes: Mapping[str, str], *, inherited: Sequence[int] = ()
    ) -> None:
        """Change a job, by scontrol's names; Slurm may refuse one value and take the others."""

    def hold(self, job_id: str) -> None:
        """Keep a pending job from starting."""

    def release(self, job_id: str) -> None:
        """Let a held job start again."""

    def requeue(self, job_id: str) -> None:
        """End a running job and put it back into the queue."""

    def requeue_running(self, job_id: str) -> None:
        """The same, in the one moment that Slurm takes for it only where the job runs.

        Slurm does nothing, and says nothing, with a job that is being cancelled or ended.
        """

    def wake_batch_script(self, job_id: str) -> None:
        """Send SIGURG to the batch script alone."""

    def signal_steps(self, steps: Sequence[str], signal: int) -> None:
        """Send a signal to job steps."""

    def end_steps(self, steps: Sequence[str]) -> None:
        """SIGKILL to job steps, at once."""

    def list_steps(self, job_id: str) -> list[tuple[str, str]]:
        """Running steps of a job as (step id, name)."""

    def read_config(self) -> dict[str, str]:
        """The values of `scontrol show config`."""

    def read_partition(self, name: str) -> dict[str, str]:
        """The fields of a partition by scontrol's names."""
