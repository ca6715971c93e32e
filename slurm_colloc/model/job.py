"""A job: what the user asked to run, as far as planning and the node need to know it.

Also: a job's parameters: what tells it from the others of its sweep or table; the parameters among
a script's arguments: `--lr 0.1`, `--lr=0.1`, `lr=0.1`; what `--share` asks for.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job_ids import OWN_ID
from slurm_colloc.model.job_values import MailRequest
from slurm_colloc.model.late_definitions import dataclass, late_pattern
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.model.printable import cut, escape_controls


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
        alone_option: The option that is why, `nodes`; empty where none alone is.
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
        turn_s: It takes turns with others that do not fit in GPU memory with it, each of so many
            seconds at least (`--take-turns`); 0 where its GPU memory is never moved.
        only_probe: It runs until its rate is known, and no longer (`csub probe`).
        tells_stalls: That probe tells what holds it up instead (`csub probe --stalls`).
        profile_like: The job whose usage profile counts for it, as `--profile-like` names it;
            None for none.
        stays_fast: Its neighbours stand back for it (`--priority=fast`).
        max_slowdown: How much slower than alone it may get, 1 or more (`--max-slowdown`); None
            where the policy decides.
        parameters: What tells it from the others of its sweep or table.
        row: The row of a table that it is, see submission.jobs.table_rows; empty for none.
        retries: How often it is started again where it fails (`--retries`).
        retry_of: The member of its submission that it tries again, `4711/3`; empty for none.
        start_together: How many members of its pack start at the same moment, it among them; 0
            where it starts by itself.
        snapshot: The copy of its project in which it runs; empty for none.
        chain: Of how many Slurm jobs, one after the other, it is made at most (`--chain`); 0 for
            one that is not to go on after its time limit.
        job_id: `--job-id`: `own` or `pack`; empty where the settings decide.
        own_id: The number that csub has given it as its SLURM_JOB_ID; empty where that is the id of
            its submission, whose first job it is, or of its pack (`--job-id=pack`).
        has_joined: It joined a pack, and its user knows it by that number.
        findings: What in its script collides where it shares, a sentence each (`csub check`).
        private_tmp: `--private-tmp`: `auto`, `always` or `never`; empty where the settings decide.
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
    alone_option: str = ""
    came_together: bool = False
    mail: MailRequest | None = None
    depends: tuple[tuple[str, str], ...] = ()
    depends_on_any: bool = False
    slurm_dependency: str = ""
    instrument: bool = True
    progress_regex: str | None = None
    metrics: tuple[str, ...] = ()
    pause: bool = True
    turn_s: float = 0.0
    only_probe: bool = False
    tells_stalls: bool = False
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
    chain: int = 0
    job_id: str = ""
    own_id: str = ""
    has_joined: bool = False
    findings: tuple[str, ...] = ()
    private_tmp: str = ""

    @property
    def is_alone_in_its_id(self) -> bool:
        """No other job has its SLURM_JOB_ID."""
        return bool(self.own_id) or self.job_id == OWN_ID

    @property
    def is_unlimited(self) -> bool:
        """Its user asked for no time limit (`--time=0`, `UNLIMITED`), not for Slurm's default."""
        return self.time_limit_s is None and any(name == "time" for name, _ in self.shape)


# ---- A job's parameters: what tells it from the others of its sweep or table; pure ---------------
#
# They are texts, as they were written: `0.10` stays `0.10`.

Parameters = tuple[tuple[str, str], ...]
"""Names and values, in the user's order."""

VARIABLE = "SLURM_COLLOC_PARAM_"
NAME_MOST = 64
VALUE_MOST = 4096

_NAME = late_pattern(r"(?a)[A-Za-z_][A-Za-z0-9_.-]*")
_NOT_IN_VARIABLES = late_pattern(r"(?a)[^A-Z0-9_]")


def check_parameter_name(name: str) -> None:
    """Check the name of a parameter.

    Raises:
        ValueError: It is none; the message goes on from the name.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            "is not a name of a parameter: a letter or '_', then letters, digits, '_', '.' and '-'"
        )
    if len(name) > NAME_MOST:
        raise ValueError(f"has {len(name)} characters, and the name of a parameter at most 64")


def check_parameter_value(value: str) -> None:
    """Check the value of a parameter.

    Raises:
        ValueError: It cannot be an argument; the message goes on from the value.
    """
    if "\0" in value:
        raise ValueError("holds a NUL byte, which no argument can")
    if len(value) > VALUE_MOST:
        raise ValueError(f"has {len(value)} characters, and a parameter at most {VALUE_MOST}")


def build_parameter_variable(name: str) -> str:
    """`SLURM_COLLOC_PARAM_LR`: capitals, and `_` for all that a variable's name cannot have."""
    return VARIABLE + _NOT_IN_VARIABLES.sub("_", name.upper())


def find_equal_variables(names: Iterable[str]) -> tuple[str, str] | None:
    """Two parameters that would be one variable in the member's environment; None for none."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(build_parameter_variable(name), name)
        if other != name:
            return other, name
    return None


def build_parameter_variables(parameters: Parameters) -> dict[str, str]:
    """What a member finds of its parameters in its environment."""
    return {build_parameter_variable(name): value for name, value in parameters}


def format_parameters(parameters: Parameters) -> str:
    """`lr=0.1 bs=32`, for people; values that are not one word are quoted."""
    return " ".join(f"{name}={shlex.quote(value) if value else ''}" for name, value in parameters)


def parse_condition(text: str) -> tuple[str, str]:
    """Read `lr=0.1`, as `--where` has it.

    Raises:
        ValueError: It is something else; the message goes on from the text.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError("is not a condition: write NAME=VALUE, as in lr=0.1")
    return name, value


def meets(parameters: Parameters, conditions: Sequence[tuple[str, str]]) -> bool:
    """Whether parameters meet conditions: of one name one of them, and of each name.

    Values are equal as texts or as numbers: 0.10 is 0.1.
    """
    own = dict(parameters)
    wanted: dict[str, list[str]] = {}
    for name, value in conditions:
        wanted.setdefault(name, []).append(value)
    return all(
        name in own and any(_are_equal(own[name], value) for value in values)
        for name, values in wanted.items()
    )


def _are_equal(one: str, other: str) -> bool:
    if one == other:
        return True
    try:
        return float(one) == float(other)
    except ValueError:
        return False


# ---- The parameters among a script's arguments: `--lr 0.1`, `--lr=0.1`, `lr=0.1`; pure -----------

_NAMED = late_pattern(r"(?s)(?:--?|\+\+?)?(?P<name>[A-Za-z_][\w.@/-]*)=(?P<value>.*)")
"""`--lr=0.1`, `-lr=0.1`, and hydra's `lr=0.1`, `+optim.lr=0.1`, `++lr=0.1`."""
_OPTION = late_pattern(r"--?(?P<name>[A-Za-z_][\w.-]*)")


def read_parameters(arguments: Sequence[str]) -> dict[str, str]:
    """What each parameter is set to, in order.

    An option that no value follows is `true`. Words of no option are `arg1`, `arg2` by their place
    among such words. Of a parameter that comes twice the last one counts, as most programs have it.
    """
    found: dict[str, str] = {}
    place = plain = 0
    while place < len(arguments):
        word = arguments[place]
        place += 1
        if named := _NAMED.fullmatch(word):
            found[named["name"]] = named["value"]
        elif option := _OPTION.fullmatch(word):
            value = "true"
            if place < len(arguments) and not _is_option(arguments[place]):
                value = arguments[place]
                place += 1
            found[option["name"]] = value
        elif word != "--":
            plain += 1
            found[f"arg{plain}"] = word
    return found


def _is_option(word: str) -> bool:
    """A word that is an option itself; `-1` and `-.5` are values."""
    return word == "--" or bool(_OPTION.fullmatch(word) or _NAMED.fullmatch(word))


# ---- What `--share` asks for ---------------------------------------------------------------------

AUTO = "auto"
SHARE_CHOICES = (
    AUTO,
    SharingMode.MPS.value,
    SharingMode.MIG.value,
    SharingMode.TIMESLICE.value,
    SharingMode.EXCLUSIVE.value,
)
_STRICT = "!"
_LAYOUT = "mig="
_FALLBACKS = {SharingMode.MPS: "mps or timeslice", SharingMode.MIG: "mig, mps or timeslice"}


@dataclass(frozen=True)
class ShareRequest:
    """How members are to share a GPU: `auto`, `mps`, `mig`, `mig=3g+2g+1g+1g`, `exclusive`, `mps!`.

    Attributes:
        mode: The mode asked for; None for `auto`, which is MPS where the node has it.
        strict: Rather fail than fall back to another mode.
        layout: The MIG instances of a GPU, as words with plus signs between them; empty where
            csub chooses them.
    """

    mode: SharingMode | None = None
    strict: bool = False
    layout: str = ""

    @classmethod
    def parse(cls, text: str, origin: str = "--share") -> ShareRequest:
        """Read the value of `--share`.

        Args:
            text: The value.
            origin: Where it was given, for the message.

        Raises:
            UsageProblem: It is no such value.
        """
        word = text.removesuffix(_STRICT)
        strict = word != text
        if word.startswith(_LAYOUT):
            return cls(SharingMode.MIG, strict, _read_layout(word.removeprefix(_LAYOUT), origin))
        if word not in SHARE_CHOICES:
            raise UsageProblem(
                f"{origin}: --share={escape_controls(cut(text))} is none of "
                f"{', '.join(SHARE_CHOICES)}",
                hint="mps! forbids any other mode instead, mig=3g+2g+1g+1g names MIG instances",
            )
        if word == AUTO:
            if strict:
                raise UsageProblem(
                    f"{origin}: --share=auto! cannot be strict",
                    hint="write mps! to forbid a fallback",
                )
            return cls()
        return cls(SharingMode(word), strict)

    @property
    def planned(self) -> SharingMode:
        """The mode that is tried first."""
        return self.mode or SharingMode.MPS

    def describe_mode(self, planned: SharingMode) -> str:
        """What is said of a pack before its node has prepared anything.

        Args:
            planned: The mode of the pack's plan.
        """
        if self.mode is None and planned is SharingMode.MIG:
            return "mig or one at a time"
        return planned.value if self.strict else _FALLBACKS.get(planned, planned.value)

    def __str__(self) -> str:
        if self.mode is None:
            return AUTO
        layout = f"={self.layout}" if self.layout else ""
        return f"{self.mode.value}{layout}{_STRICT if self.strict else ''}"


def _read_layout(text: str, origin: str) -> str:
    """A layout that its words let through; whether a GPU has such instances is seen later."""
    # Only who names instances waits for it.
    from slurm_colloc.model.mig_layout import parse_layout, render_layout

    try:
        return render_layout(parse_layout(text))
    except UsageProblem as problem:
        raise UsageProblem(f"{origin}: {problem.message}", hint=problem.hint) from problem
