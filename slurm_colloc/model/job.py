"""A job: what the user asked to run, as far as planning and the node need to know it."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_colloc.model.sbatch.mail_types import MailRequest


@dataclass(frozen=True)
class SignalRequest:
    """`--signal=[B:]SIG[@T]`.

    Attributes:
        number: Signal number.
        seconds_before_end: How long before the member's wall limit it is sent.
        batch_shell: True for `B:`: only the script itself gets it, otherwise only its steps do.
    """

    number: int
    seconds_before_end: int
    batch_shell: bool


@dataclass(frozen=True)
class ArrayTask:
    """A task of `--array`, with what its SLURM_ARRAY_* variables say."""

    task_id: int
    count: int
    minimum: int
    maximum: int
    step: int


@dataclass(frozen=True)
class Job:
    """One job as it was asked for; the script and the environment travel with it.

    Attributes:
        number: Its number within the call: 1, 2, ... or the user's own task number.
        name: `--job-name`.
        script_name: The script's path as the user wrote it, for messages.
        arguments: The script's arguments.
        directory: Working directory.
        cpus: CPUs it needs, at least 1.
        host_memory_mb: Host memory it needs in MB; None where nothing was asked.
        gpus: Number of GPUs.
        gpu_type: GPU type, or None for any.
        gpu_memory_mb: GPU memory it needs in MB, as the user said; None where unknown.
        time_limit_s: `--time` in seconds, counted as if it ran alone; None where nothing was
            asked, and where it is to be unlimited.
        output: Pattern of its output file.
        error: Pattern of its error file; None where both go to `output`.
        input: Path of its standard input, or None.
        truncate_output: `--open-mode=truncate`.
        asks_open_mode: `--open-mode` was given; otherwise the site's JobFileAppend counts.
        signal: `--signal`.
        requeue: `--requeue` or `--no-requeue`; None where the site decides.
        export: The value of `--export`, or None.
        array_task: Its place in `--array`.
        group: Options that every member of a pack must have equal, sorted, as (name, value).
        shape: What it asks of Slurm, as (option, value) as the user wrote it; this is what is
            asked when it runs alone.
        alone_because: Why it cannot share, in words; empty if it can.
        came_together: It came by `--array`, `pack`, `--degree` or `--gpu-mem`.
        mail: `--mail-type` and `--mail-user`; None where no mail is asked for.
        depends: What its runner looks at before it starts, as (kind, `4711/3`): the conditions of
            `--dependency` on members that were open when it was submitted.
        depends_on_any: One of `depends` is enough; plain job ids stand among them then.
        slurm_dependency: What Slurm is told instead of such a `--dependency`.
        instrument: Its Python counts training steps; False with `--no-instrument`.
        progress_regex: What is looked for in its output; see submission.jobs.call_jobs. None for
            nothing.
        metrics: The results that are looked for in its output, see model.result_metrics.
        pause: It may be paused, so that others are measured without it; False with `--no-pause`.
        only_probe: It runs until its rate is known, and no longer (`csub probe`).
        profile_like: The job whose usage profile counts for it, as `--profile-like` names it;
            None for none.
        stays_fast: Its neighbours stand back for it (`--priority=fast`).
        max_slowdown: How much slower than alone it may get, 1 or more (`--max-slowdown`); None
            where the policy decides.
        parameters: What tells it from the others of its sweep or table, see model.parameters.
        row: The row of a table that it is, see submission.jobs.table_rows; empty for none.
        retries: How often it is started again where it fails (`--retries`).
        retry_of: The member of its submission that it tries again, `4711/3`; empty for none.
        start_together: How many members of its pack start at the same moment, it among them; 0
            where it starts by itself.
        snapshot: The copy of its project in which it runs; empty for none.
        needs_wall: Its fault would end its neighbours under MPS: it runs alone, or behind walls.
    """

    number: int
    name: str
    script_name: str
    arguments: tuple[str, ...]
    directory: str
    cpus: int = 1
    host_memory_mb: int | None = None
    gpus: int = 0
    gpu_type: str | None = None
    gpu_memory_mb: int | None = None
    time_limit_s: int | None = None
    output: str | None = None
    error: str | None = None
    input: str | None = None
    truncate_output: bool = False
    asks_open_mode: bool = True
    signal: SignalRequest | None = None
    requeue: bool | None = None
    export: str | None = None
    array_task: ArrayTask | None = None
    group: tuple[tuple[str, str], ...] = ()
    shape: tuple[tuple[str, str], ...] = ()
    alone_because: str = ""
    came_together: bool = False
    mail: MailRequest | None = None
    depends: tuple[tuple[str, str], ...] = ()
    depends_on_any: bool = False
    slurm_dependency: str = ""
    instrument: bool = True
    progress_regex: str | None = None
    metrics: tuple[str, ...] = ()
    pause: bool = True
    only_probe: bool = False
    profile_like: str | None = None
    max_slowdown: float | None = None
    stays_fast: bool = False
    parameters: tuple[tuple[str, str], ...] = ()
    row: str = ""
    retries: int = 0
    retry_of: str = ""
    start_together: int = 0
    snapshot: str = ""
    needs_wall: bool = False

    @property
    def is_unlimited(self) -> bool:
        """Its user asked for no time limit (`--time=0`, `UNLIMITED`), not for Slurm's default."""
        return self.time_limit_s is None and any(name == "time" for name, _ in self.shape)
