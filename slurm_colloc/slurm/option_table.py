"""The options of sbatch and csub itself as one table: argument, and concern to packing.

Also: what is known about an option: its argument, and what it means for packing; options that a
site's SPANK plug-ins add to sbatch and srun, as the installed commands tell them.

Covers Slurm 22.05 to 26.05 (`slurm_opt.c`, sbatch(1)). Whether the installed Slurm knows an
option is Slurm's to say: csub passes it on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from slurm_colloc.errors import SlurmError, SlurmUnreachable
from slurm_colloc.model.late_definitions import dataclass, late_pattern
from slurm_colloc.slurm.run_command import run_slurm

# ---- What is known about an option: its argument, and what it means for packing ------------------


class Argument(Enum):
    """Whether an option takes a value, in the sense of getopt_long(3)."""

    NONE = "none"
    REQUIRED = "required"
    OPTIONAL = "optional"  # only attached: --name=value, -nvalue


class Concern(Enum):
    """What an option means for packing."""

    MEMBER = "member"
    """csub does it for each member itself."""
    GROUP = "group"
    """Jobs share a pack only where the values are equal; sbatch gets it for the pack."""
    SHAPE = "shape"
    """How many nodes, tasks and GPUs: the value decides whether the job can be packed."""
    ALONE = "alone"
    """A job with this runs in an allocation of its own, and sbatch gets the option as it is."""
    CALL = "call"
    """It concerns this call of csub only."""
    REFUSED = "refused"
    """csub cannot do it; `Option.reason` says why."""
    STEP = "step"
    """An option of srun alone."""


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        name: The long name without dashes.
        short: The letter of the short form, or None.
        argument: Whether it takes a value.
        concern: What it means for packing.
        env: The input variables of sbatch(1) that set it, in the order in which sbatch reads them.
        srun: Whether srun takes it too.
        since: The first release with it, or None where 22.05 has it.
        until: The last release with it, or None.
        own: Whether it is csub's own.
        alias_of: The name of the option that this is another spelling of, or None.
        cancels: The option that this one turns off, or None.
        early: Whether sbatch reads it from the command line and environment only, and ignores it
            in a script.
        reason: Why it is refused or makes a job run alone, as a clause, or what an own one does.
        choices: Of an own option whose value may be left out: words that may also follow it as
            a word of their own.
        repeats: Each time that it is given counts: within one place the values are joined by line
            breaks.
    """

    name: str
    short: str | None
    argument: Argument
    concern: Concern
    env: tuple[str, ...] = ()
    srun: bool = False
    since: str | None = None
    until: str | None = None
    own: bool = False
    alias_of: str | None = None
    cancels: str | None = None
    early: bool = False
    reason: str = ""
    choices: tuple[str, ...] = ()
    repeats: bool = False

    @property
    def canonical_name(self) -> str:
        """The name under which the value is kept."""
        return self.alias_of or self.name


# ---- The options of sbatch and csub itself as one table: argument, and concern to packing --------

_NO = Argument.NONE
_REQ = Argument.REQUIRED
_OPT = Argument.OPTIONAL

_NODES = "it spreads a job over nodes"
_PIN = "it pins tasks to CPUs, GPUs or memory of a whole allocation"
_CORES = "it takes cores of the node away from jobs"
_ONE_CLUSTER = "csub follows the jobs of one cluster only"
_OWN_PACKS = "a pack belongs to the user and group that call csub"
_OCI = "the container runs the whole batch job"


def _member(name: str, short: str | None, argument: Argument, *env: str) -> Option:
    return Option(name, short, argument, Concern.MEMBER, env, srun=True)


def _group(
    name: str, short: str | None, argument: Argument, *env: str, since: str | None = None
) -> Option:
    return Option(name, short, argument, Concern.GROUP, env, srun=True, since=since)


def _shape(name: str, short: str | None, *env: str, since: str | None = None) -> Option:
    return Option(name, short, _REQ, Concern.SHAPE, env, srun=True, since=since)


def _alone(
    name: str,
    short: str | None,
    argument: Argument,
    reason: str,
    *env: str,
    since: str | None = None,
) -> Option:
    return Option(name, short, argument, Concern.ALONE, env, srun=True, since=since, reason=reason)


def _refused(
    name: str, short: str | None, reason: str, *env: str, alias_of: str | None = None
) -> Option:
    return Option(
        name, short, _REQ, Concern.REFUSED, env, srun=True, alias_of=alias_of, reason=reason
    )


def _call(
    name: str,
    short: str | None,
    *env: str,
    srun: bool = True,
    since: str | None = None,
    early: bool = False,
) -> Option:
    return Option(name, short, _NO, Concern.CALL, env, srun=srun, since=since, early=early)


def _batch(name: str, short: str | None, argument: Argument, concern: Concern, *env: str) -> Option:
    """One that sbatch has and srun has not."""
    return Option(name, short, argument, concern, env)


SBATCH_OPTIONS: tuple[Option, ...] = (
    # What csub does for each member.
    _batch("array", "a", _REQ, Concern.MEMBER, "SBATCH_ARRAY_INX"),
    _member("chdir", "D", _REQ),
    _member("comment", None, _REQ),
    _member("cpus-per-gpu", None, _REQ, "SBATCH_CPUS_PER_GPU"),
    _member("cpus-per-task", "c", _REQ),
    _member("error", "e", _REQ, "SBATCH_ERROR"),
    _member("export", None, _REQ, "SBATCH_EXPORT"),
    _batch("export-file", None, _REQ, Concern.MEMBER),
    _member("input", "i", _REQ, "SBATCH_INPUT"),
    _member("job-name", "J", _REQ, "SBATCH_JOB_NAME"),
    _member("mail-type", None, _REQ),
    _member("mail-user", None, _REQ),
    _member("mem", None, _REQ, "SBATCH_MEM_PER_NODE"),
    _member("mem-per-cpu", None, _REQ, "SBATCH_MEM_PER_CPU"),
    _member("mem-per-gpu", None, _REQ, "SBATCH_MEM_PER_GPU"),
    Option(
        "no-requeue",
        None,
        _NO,
        Concern.MEMBER,
        ("SBATCH_NO_REQUEUE",),
        cancels="requeue",
    ),
    _member("open-mode", None, _REQ, "SBATCH_OPEN_MODE"),
    _member("output", "o", _REQ, "SBATCH_OUTPUT"),
    # A flag until 25.11; 26.05 takes --requeue=expedite.
    Option("requeue", None, _OPT, Concern.MEMBER, ("SBATCH_REQUEUE",), cancels="no-requeue"),
    _member("signal", None, _REQ, "SBATCH_SIGNAL"),
    _member("time", "t", _REQ, "SBATCH_TIMELIMIT"),
    Option("wrap", None, _REQ, Concern.MEMBER, early=True),
    # What all jobs of a pack must have in common.
    _group("account", "A", _REQ, "SBATCH_ACCOUNT"),
    _group("acctg-freq", None, _REQ, "SBATCH_ACCTG_FREQ"),
    _batch("batch", None, _REQ, Concern.GROUP, "SBATCH_BATCH"),
    _group("begin", "b", _REQ),
    _group("cluster-constraint", None, _REQ, "SBATCH_CLUSTER_CONSTRAINT"),
    _group("constraint", "C", _REQ, "SBATCH_CONSTRAINT"),
    _group("context", None, _REQ),
    _group("contiguous", None, _NO),
    _group("cpu-freq", None, _REQ, "SBATCH_CPU_FREQ_REQ"),
    _group("deadline", None, _REQ),
    _group("delay-boot", None, _REQ, "SBATCH_DELAY_BOOT"),
    _group("dependency", "d", _REQ),
    _group("distribution", "m", _REQ, "SBATCH_DISTRIBUTION"),
    _group("exclude", "x", _REQ),
    _group("extra", None, _REQ, since="23.02"),
    # A flag since 25.05.
    _batch("get-user-env", None, _OPT, Concern.GROUP, "SBATCH_GET_USER_ENV"),
    _group("gpu-freq", None, _REQ, "SBATCH_GPU_FREQ"),
    _group("gres-flags", None, _REQ, "SBATCH_GRES_FLAGS"),
    _group("hint", None, _REQ, "SLURM_HINT", "SBATCH_HINT"),
    _group("hold", "H", _NO),
    _batch("kill-on-invalid-dep", None, _REQ, Concern.GROUP),
    _group("licenses", "L", _REQ),
    _group("mcs-label", None, _REQ),
    _group("mincpus", None, _REQ),
    _group("network", None, _REQ, "SBATCH_NETWORK"),
    _group("nice", None, _OPT),
    _group("nodefile", "F", _REQ),
    _group("nodelist", "w", _REQ),
    _group("oom-kill-step", None, _OPT, since="24.11"),
    _group("oversubscribe", "s", _NO),
    _group("partition", "p", _REQ, "SBATCH_PARTITION"),
    Option("power", None, _REQ, Concern.GROUP, ("SBATCH_POWER",), srun=True, until="23.11"),
    _group("prefer", None, _REQ),
    _group("priority", None, _REQ),
    _group("profile", None, _REQ, "SBATCH_PROFILE"),
    _group("propagate", None, _OPT),
    _group("qos", "q", _REQ, "SBATCH_QOS"),
    _group("reservation", None, _REQ, "SBATCH_RESERVATION"),
    _group("resources", None, _REQ, since="25.11"),
    _group("switches", None, _REQ, "SBATCH_REQ_SWITCH"),
    _group("threads-per-core", None, _REQ, "SBATCH_THREADS_PER_CORE"),
    _group("tmp", None, _REQ),
    _group("use-min-nodes", None, _NO, "SBATCH_USE_MIN_NODES"),
    _batch("wait-all-nodes", None, _REQ, Concern.GROUP, "SBATCH_WAIT_ALL_NODES"),
    _group("wckey", None, _REQ, "SBATCH_WCKEY"),
    # Nodes, tasks and GPUs: one of each can be packed.
    _shape("gpus", "G", "SBATCH_GPUS"),
    _shape("gpus-per-node", None, "SBATCH_GPUS_PER_NODE"),
    _shape("gpus-per-socket", None, "SBATCH_GPUS_PER_SOCKET"),
    _shape("gpus-per-task", None, "SBATCH_GPUS_PER_TASK"),
    _shape("gres", None, "SBATCH_GRES"),
    _shape("nodes", "N"),
    _shape("ntasks", "n"),
    _shape("ntasks-per-core", None),
    _shape("ntasks-per-gpu", None),
    _shape("ntasks-per-node", None),
    Option("tasks-per-node", None, _REQ, Concern.SHAPE, srun=True, alias_of="ntasks-per-node"),
    _shape("ntasks-per-socket", None),
    _shape("ntasks-per-tres", None),
    _shape("tres-per-task", None, "SBATCH_TRES_PER_TASK", since="23.02"),
    # What cannot be shared.
    _alone("bb", None, _REQ, "a burst buffer belongs to one job", "SBATCH_BURST_BUFFER"),
    _alone("bbf", None, _REQ, "a burst buffer belongs to one job"),
    _alone("consolidate-segments", None, _NO, _NODES, "SBATCH_CONSOLIDATE_SEGMENTS", since="25.11"),
    _alone("container", None, _REQ, _OCI, "SBATCH_CONTAINER"),
    _alone("container-id", None, _REQ, _OCI, "SBATCH_CONTAINER_ID", since="23.02"),
    _alone("container-type", None, _REQ, _OCI, "SBATCH_CONTAINER_TYPE", since="26.05"),
    _alone("core-spec", "S", _REQ, _CORES, "SBATCH_CORE_SPEC"),
    _alone("cores-per-socket", None, _REQ, _PIN),
    _alone(
        "exclusive",
        None,
        _OPT,
        "it asks for a node of its own (with --gpus-per-pack jobs of one call share it)",
        "SBATCH_EXCLUSIVE",
    ),
    _alone("extra-node-info", "B", _REQ, _PIN),
    _alone("gpu-bind", None, _REQ, _PIN, "SBATCH_GPU_BIND"),
    _alone("mem-bind", None, _REQ, _PIN, "SBATCH_MEM_BIND"),
    _alone(
        "mem-update",
        None,
        _REQ,
        "Slurm would shrink the host memory under later members",
        since="26.05",
    ),
    _alone("no-kill", "k", _OPT, _NODES, "SBATCH_NO_KILL"),
    _alone("overcommit", "O", _NO, "it starts more tasks than CPUs", "SBATCH_OVERCOMMIT"),
    _alone("reboot", None, _NO, "the node is booted for it"),
    _alone("resv-ports", None, _OPT, "the ports belong to one job"),
    _alone("segment", None, _REQ, _NODES, "SBATCH_SEGMENT_SIZE", since="24.05"),
    _alone("sockets-per-node", None, _REQ, _PIN),
    _alone("spread-job", None, _NO, _NODES, "SBATCH_SPREAD_JOB"),
    _alone("spread-segments", None, _NO, _NODES, "SBATCH_SPREAD_SEGMENTS", since="25.11"),
    _alone("stepmgr", None, _NO, "another program manages its steps", since="24.05"),
    _alone("thread-spec", None, _REQ, _CORES, "SBATCH_THREAD_SPEC"),
    _alone("time-min", None, _REQ, "Slurm may give it less time than its members need"),
    _alone("tres-bind", None, _REQ, _PIN, "SBATCH_TRES_BIND", since="23.11"),
    # What concerns this call only.
    Option("autocomplete", None, _REQ, Concern.CALL, srun=True, since="23.02"),
    _call("help", "h", early=True),
    _call("ignore-pbs", None, "SBATCH_IGNORE_PBS", srun=False),
    _call("parsable", None),
    _call("quiet", "Q", early=True),
    _call("test-only", None),
    _call("usage", None, early=True),
    _call("verbose", "v", "SBATCH_DEBUG", early=True),
    _call("version", "V", early=True),
    _call("wait", "W", "SBATCH_WAIT", srun=False),
    # What csub cannot do.
    _refused("clusters", "M", _ONE_CLUSTER, "SBATCH_CLUSTERS", "SLURM_CLUSTERS"),
    _refused("cluster", None, _ONE_CLUSTER, alias_of="clusters"),
    Option(
        "external",
        None,
        _NO,
        Concern.REFUSED,
        since="25.05",
        reason="it makes a job without a script, so there is nothing to pack",
    ),
    _refused("gid", None, _OWN_PACKS),
    _refused("uid", None, _OWN_PACKS),
)


def _own(name: str, argument: Argument, concern: Concern, reason: str) -> Option:
    return Option(name, None, argument, concern, own=True, reason=reason)


REMOVED_OPTIONS: Mapping[str, str] = {
    "nodes-per-pack": "an array of packs on one node each does it: --array, csub pack, csub batch",
    "policy": "csub alone makes the packs now",
}
"""Own options that are gone, with what holds in their place."""

OWN_OPTIONS: tuple[Option, ...] = (
    _own("degree", _REQ, Concern.GROUP, "how many members may run on the GPU at the same time"),
    _own("pack-size", _REQ, Concern.GROUP, "members per pack; those beyond the degree wait in it"),
    _own(
        "gpus-per-pack",
        _REQ,
        Concern.GROUP,
        "GPUs of a pack: a number, node (all of a node) or auto",
    ),
    _own(
        "share",
        _REQ,
        Concern.GROUP,
        "auto, mps, mig, mig=3g+2g, timeslice, exclusive; ! allows no fallback",
    ),
    _own("max-slowdown", _REQ, Concern.MEMBER, "the slowdown that the job accepts, 1 or more"),
    _own("gpu-mem", _REQ, Concern.MEMBER, "the GPU memory that the job needs, as in 10G"),
    _own(
        "profile-like",
        _REQ,
        Concern.MEMBER,
        "if the job has not been measured: the name of one that uses as much, or the first digits "
        "of its signature (csub profile list)",
    ),
    _own("goal", _REQ, Concern.GROUP, "what packs are chosen for: throughput, latency or energy"),
    _own(
        "progress-regex",
        _REQ,
        Concern.MEMBER,
        "how to read progress from the job's output, as in 'step (?P<step>[0-9]+)'",
    ),
    Option(
        "metric",
        None,
        _REQ,
        Concern.MEMBER,
        own=True,
        reason="a result to read from the job's output, as in loss or 'val (?P<loss>[0-9.]+)'; "
        "may be given several times",
        repeats=True,
    ),
    _own("retries", _REQ, Concern.MEMBER, "how often to start the job again if it fails"),
    _own(
        "start-together",
        _REQ,
        Concern.MEMBER,
        "how many members of a pack, with this job, start at the same moment",
    ),
    Option(
        "chain",
        None,
        _OPT,
        Concern.MEMBER,
        own=True,
        reason="go on after the time limit in a further Slurm job, submitted ahead; N: in at most "
        "so many in all",
    ),
    _own("saves", _NO, Concern.MEMBER, "with --chain: the program saves, and goes on from there"),
    Option(
        "take-turns",
        None,
        _OPT,
        Concern.MEMBER,
        own=True,
        reason="where jobs do not fit in GPU memory together, let them take turns; SECONDS: how "
        "long a turn lasts at least",
    ),
    _own(
        "job-id",
        _REQ,
        Concern.MEMBER,
        "what SLURM_JOB_ID is in the job: own (a number of its own) or pack (that of its pack)",
    ),
    Option(
        "accept",
        None,
        _REQ,
        Concern.MEMBER,
        own=True,
        reason="share in spite of a finding of csub check: its name, or all; may be given several "
        "times",
        repeats=True,
    ),
    Option(
        "private-tmp",
        None,
        _OPT,
        Concern.MEMBER,
        own=True,
        reason="a /tmp of its own: always, auto (where sbatch gives one), never",
        choices=("always", "auto", "never"),
    ),
    _own("no-pause", _NO, Concern.MEMBER, "never pause the job, not even to measure others"),
    _own("no-instrument", _NO, Concern.MEMBER, "do not touch the job's Python: count no steps"),
    Option(
        "join",
        None,
        _OPT,
        Concern.CALL,
        own=True,
        reason="join an existing pack: auto (running or waiting), pending, never",
        choices=("auto", "pending", "never"),
    ),
    Option(
        "open",
        None,
        _OPT,
        Concern.CALL,
        own=True,
        reason="ask for more than the job needs, so that others can join it while it runs; N: for "
        "so many at the same time, this job included; never: for this job alone",
    ),
    _own("zip", _NO, Concern.CALL, "csub sweep only: combine first values, second values, ..."),
    _own(
        "sample", _REQ, Concern.CALL, "csub sweep only: N random combinations, as in 20 or 20:SEED"
    ),
    _own("from", _REQ, Concern.CALL, "csub sweep only: a CSV, YAML, TOML or JSONL file of values"),
    _own("resume", _NO, Concern.CALL, "csub batch only: submit the rows that are not done"),
    _own("watch", _NO, Concern.CALL, "csub batch only: keep running, and submit rows added later"),
    _own("stalls", _NO, Concern.CALL, "csub probe only: tell what holds the training up"),
    Option(
        "snapshot",
        None,
        _OPT,
        Concern.CALL,
        own=True,
        reason="run in a copy of the project as it is now, or of these comma-separated PATHS",
    ),
    _own("avoid-slow", _NO, Concern.CALL, "leave out nodes with a slow GPU (--exclude)"),
    _own("local", _NO, Concern.CALL, "run on this machine, without Slurm"),
    _own("json", _NO, Concern.CALL, "print one JSON object"),
    _own("dry-run", _NO, Concern.CALL, "print what would be submitted, and submit nothing"),
    _own("explain", _NO, Concern.CALL, "say why the jobs were packed as they were"),
    _own(
        "what-if",
        _REQ,
        Concern.CALL,
        "csub plan only: also show the plan with other values: degree=4,mode=timeslice",
    ),
)


# ----
# Options that a site's SPANK plug-ins add to sbatch and srun, as the installed commands tell
# them.
#
# Their help lists the names below one line (`spank_print_options` in plugstack.c, 22.05 to 26.05).
# Whether an option needs a value is not told there, so the command is asked with the option before
# `--version`: where it takes that word as its value, no version is said.

_BELOW = "Options provided by plugins:"
_NAME = late_pattern(r"\s*--([A-Za-z0-9][\w.-]*)(\[?=.*)?")
_VERSION = late_pattern(r"slurm\S* \d")


def ask_site_options(command: str, known: Sequence[str]) -> tuple[Option, ...]:
    """What plug-ins add to a command.

    Jobs share a pack only where the values are equal: what an option does is not known.

    Args:
        command: `sbatch` or `srun`, or a path.
        known: Names that are Slurm's own.

    Raises:
        SlurmUnreachable: The command is not installed.
    """
    try:
        text = run_slurm([command, "--help"]).stdout
    except SlurmUnreachable:
        raise
    except SlurmError:
        return ()
    names = [name for name in parse_names(text) if name not in known]
    return tuple(
        Option(name, None, argument, Concern.GROUP)
        for name in names
        if (argument := ask_argument(command, name)) is not None
    )


def parse_names(text: str) -> list[str]:
    """The names of plug-ins' options in the help of a command."""
    _, found, listed = text.partition(_BELOW)
    names = []
    for line in listed.splitlines() if found else ():
        match = _NAME.match(line)
        if match is not None:
            names.append(match[1])
        elif line.strip() and not line[:1].isspace():
            # The next heading.
            break
    return names


def ask_argument(command: str, name: str) -> Argument | None:
    """Whether an option of this command needs a value; None where it knows no such option.

    Where it may be left out, or is not taken, it can only be attached: that is one case here.
    """
    trial = ["--test-only"] if command.rpartition("/")[2] == "sbatch" else []
    # Nothing can start: without its --version, sbatch only tests an empty script, srun has none.
    if _tells_version([command, *trial, f"--{name}", "--version"]):
        return Argument.OPTIONAL
    is_known = _tells_version([command, *trial, f"--{name}=", "--version"]) or _tells_version(
        [command, *trial, f"--{name}=1", "--version"]
    )
    return Argument.REQUIRED if is_known else None


def _tells_version(argv: Sequence[str]) -> bool:
    try:
        return _VERSION.match(run_slurm(argv).stdout) is not None
    except SlurmError:
        return False
