"""`--dependency` with members in it: `afterok:4711/3`, alone or among plain job ids.

Also: what `--export` lets through of an environment (sbatch(1), --export); `--mail-type` and
`--mail-user`: which mails a job wants, and what they say; file name patterns of sbatch (sbatch(1),
filename pattern), for members.

Slurm knows no members. So Slurm is told to wait for the member's pack, and the condition itself is
judged from the state: when the job is submitted, when the member ends, and before the job starts.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.late_definitions import dataclass, late_pattern
from slurm_colloc.model.member import FINAL_STATES, ExitCode, MemberId, MemberState

AFTERCORR = "aftercorr"
"""Pairs tasks of two arrays: each waits for the success of the other's task of its number."""

MEMBER_KINDS = frozenset({"after", "afterany", "afternotok", "afterok"})
"""What may stand before a member."""

_MEMBER = late_pattern(r"\d+/\d+")


class ConditionOutlook(enum.Enum):
    """What can be said of a condition."""

    SATISFIED = "satisfied"
    NEVER = "never"
    OPEN = "open"


@dataclass(frozen=True)
class Condition:
    """One condition: `afterok` and `4711/3`, or a plain one as Slurm understands it.

    Attributes:
        kind: `afterok`, ...; empty for a word without an id, such as `singleton`.
        target: A member (`4711/3`), or what Slurm is given as it is.
    """

    kind: str
    target: str

    @property
    def is_of_member(self) -> bool:
        """It speaks of a member."""
        return "/" in self.target

    def __str__(self) -> str:
        return f"{self.kind}:{self.target}" if self.kind else self.target


@dataclass(frozen=True)
class Dependency:
    """All conditions of a job.

    Attributes:
        conditions: In the user's order.
        is_any: One of them is enough (`?`); otherwise all must hold.
    """

    conditions: tuple[Condition, ...]
    is_any: bool = False


def names_singleton(text: str) -> bool:
    """A value of `--dependency` that goes by the job's name."""
    return "singleton" in re.split(r"[,?]", text.lower())


def join_conditions(texts: Iterable[str]) -> str:
    """All conditions of several values for sbatch, each once; alternatives must be equal in all."""
    words = (word for text in texts for word in ([text] if "?" in text else text.split(",")))
    return ",".join(dict.fromkeys(filter(None, words)))


def add_condition(text: str, condition: str) -> str:
    """A value for sbatch with one condition more.

    Raises:
        UsageProblem: It has alternatives, and Slurm has no words for both.
    """
    if "?" in text:
        raise UsageProblem(
            f"--dependency={text}: its jobs become several Slurm jobs that wait for each other, "
            "which cannot be combined with `?`",
            hint="leave out the limit of --array, or join the conditions by `,`",
        )
    return f"{text},{condition}" if text else condition


def parse_dependency(text: str) -> Dependency:
    """Read the value of `--dependency`.

    Raises:
        ValueError: It is malformed where it speaks of members; the rest is Slurm's to judge.
    """
    if "," in text and "?" in text:
        raise ValueError("conditions are joined by `,` (all) or by `?` (one), not by both")
    conditions = []
    for word in re.split(r"[,?]", text):
        kind, separator, targets = word.strip().partition(":")
        # In any case, as Slurm reads them.
        kind = kind.lower()
        if not separator:
            conditions.append(Condition("", kind))
            continue
        for target in targets.split(":"):
            if "/" in target:
                _check_member(kind, target)
            conditions.append(Condition(kind, target))
    return Dependency(tuple(conditions), "?" in text)


def _check_member(kind: str, target: str) -> None:
    if kind not in MEMBER_KINDS:
        raise ValueError(
            f"{kind} cannot be used with a member, only {', '.join(sorted(MEMBER_KINDS))}"
        )
    if "+" in target:
        raise ValueError(f"{target}: a delay (+minutes) cannot be used with a member")
    if target.startswith("L"):
        raise ValueError(f"{target} runs without Slurm, no Slurm job can wait for it")
    if not _MEMBER.fullmatch(target):
        raise ValueError(f"{target!r} is not a member id, one is written 4711/3")


def judge_member(kind: str, state: MemberState, *, has_started: bool) -> ConditionOutlook:
    """Judge a condition by what its member is.

    Args:
        kind: `after`, `afterany`, `afternotok` or `afterok`.
        state: The member's state, as a reader must see it.
        has_started: It was started at least once.
    """
    is_final = state in FINAL_STATES
    if kind == "after":
        return ConditionOutlook.SATISFIED if is_final or has_started else ConditionOutlook.OPEN
    if not is_final:
        return ConditionOutlook.OPEN
    if kind == "afterany" or (kind == "afterok") == (state is MemberState.COMPLETED):
        return ConditionOutlook.SATISFIED
    return ConditionOutlook.NEVER


def reduce_dependency(
    dependency: Dependency, judge: Callable[[Condition], ConditionOutlook]
) -> tuple[ConditionOutlook, Dependency]:
    """Leave out what is decided.

    Args:
        dependency: What was asked.
        judge: Judges a condition; OPEN where only Slurm can.

    Returns:
        The outlook of the whole, and what is still open.
    """
    outlooks = [judge(condition) for condition in dependency.conditions]
    decisive = ConditionOutlook.SATISFIED if dependency.is_any else ConditionOutlook.NEVER
    other = ConditionOutlook.NEVER if dependency.is_any else ConditionOutlook.SATISFIED
    rest = tuple(
        condition
        for condition, outlook in zip(dependency.conditions, outlooks, strict=True)
        if outlook is ConditionOutlook.OPEN
    )
    if decisive in outlooks:
        return decisive, Dependency((), dependency.is_any)
    return (ConditionOutlook.OPEN if rest else other), Dependency(rest, dependency.is_any)


def render_for_slurm(dependency: Dependency, find_job: Callable[[MemberId], str]) -> str:
    """The value for sbatch: a member's condition becomes `afterany` of its pack.

    The pack is over at the latest when its last member has ended, so that is never too early
    where all conditions must hold; where one is enough, the job's runner looks again.

    Args:
        dependency: What is open.
        find_job: The Slurm job of a member's pack.
    """
    words = [
        f"afterany:{find_job(MemberId.parse(condition.target))}"
        if condition.is_of_member
        else str(condition)
        for condition in dependency.conditions
    ]
    return ("?" if dependency.is_any else ",").join(dict.fromkeys(words))


def replace_job(current: str, job_id: str, instead: str = "") -> str:
    """Take `afterany` of a job out of what Slurm shows as a job's dependency.

    Args:
        current: The field of `scontrol show job`: `afterany:12_3(unfulfilled),afterok:14(...)`.
        job_id: The job.
        instead: The job whose end is waited for instead; empty for none.

    Returns:
        The value for `scontrol update`, empty for none.
    """
    if current in ("", "(null)"):
        return ""
    separator = "?" if "?" in current else ","
    words = [word.partition("(")[0] for word in re.split(r"[,?]", current)]
    other = f"afterany:{instead}" if instead else ""
    words = [other if word == f"afterany:{job_id}" else word for word in words]
    return separator.join(filter(None, words))


def describe(conditions: Sequence[tuple[str, str]], *, is_any: bool = False) -> str:
    """Conditions as the user wrote them: `afterok:4711/3`."""
    return ("?" if is_any else ",").join(
        f"{kind}:{target}" if kind else target for kind, target in conditions
    )


# ---- What `--export` lets through of an environment (sbatch(1), --export) ------------------------

SET_VARIABLE = "SLURM_COLLOC_SET"
"""What csub set in a member's environment, as one JSON object: NAME: [value, value before]."""

_OF_ONE_JOB_ALONE = frozenset(
    {
        "SLURM_COLLOC_BASE",
        "SLURM_COLLOC_POLICY",
        "SLURM_COLLOC_RUN",
        "SLURM_COLLOC_SETTINGS",
        "SLURM_COLLOC_SLURM_ACCESS",
    }
)
"""What a user or site sets for csub itself; every other SLURM_COLLOC_* speaks of one member."""

# Variables of an allocation that csub itself was called in; they would speak of another job.
_OUTER_JOB = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI_", "PMIX_")
_OF_THE_CLIENT = frozenset(
    {"SLURM_CONF", "SLURM_TIME_FORMAT", "SLURM_CONF_SERVER", *_OF_ONE_JOB_ALONE}
)

_ALWAYS = ("SLURM_", "SPANK_")
"""What sbatch exports whatever --export says."""


def choose_batch_export(export: str | None) -> str:
    """The value of `--export` for the batch script of a job with this one.

    With anything but ALL Slurm itself loads the login environment on the node, below what is
    exported (sbatch(1); NIL loads it in 22.05 only), so the same is asked for the pack.
    """
    if exports_all(export):
        return "ALL"
    return "NIL" if (export or "").upper() == "NIL" else "NONE"


def is_none(export: str) -> bool:
    """Nothing is exported, in any case of the words, but what speaks of Slurm."""
    return export.upper() in ("NONE", "NIL")


def exports_all(export: str | None) -> bool:
    """Everything is exported; sbatch takes these words in any case (sbatch.c)."""
    return export is None or export.upper() == "ALL"


def speaks_of_a_member(name: str) -> bool:
    """True for a variable that csub sets for one member, and no other job may see."""
    return name.startswith("SLURM_COLLOC_") and name not in _OF_ONE_JOB_ALONE


def describe_set(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """The value of SLURM_COLLOC_SET.

    Args:
        before: What sbatch would have given the member.
        after: What it gets.
    """
    import json

    return json.dumps(
        {
            name: [value, before.get(name)]
            for name, value in sorted(after.items())
            if name != "PATH" and before.get(name) != value and not speaks_of_a_member(name)
        }
    )


def iterate_set(environment: Mapping[str, str]) -> Iterator[tuple[str, str, str | None]]:
    """What csub set: name, value, and the value before (None for none); nothing if unreadable."""
    import json

    try:
        described = json.loads(environment.get(SET_VARIABLE, "{}"))
        rows = [(name, value, before) for name, (value, before) in described.items()]
    except (AttributeError, TypeError, ValueError):
        return
    for name, value, before in rows:
        if isinstance(value, str) and (before is None or isinstance(before, str)):
            yield name, value, before


def remove_member_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without what csub put into a member's: for jobs that a member submits.

    What the member has changed since then is its own, and stays.
    """
    kept = {name: value for name, value in environment.items() if not speaks_of_a_member(name)}
    for name, value, before in iterate_set(environment):
        if kept.get(name) == value:
            del kept[name]
            if before is not None:
                kept[name] = before
    pack = environment.get("SLURM_COLLOC_PACK")
    if pack and "PATH" in kept:
        folders = kept["PATH"].split(":")
        kept["PATH"] = ":".join(folder for folder in folders if not is_shim_folder(folder, pack))
    return kept


def is_shim_folder(folder: str, pack: str) -> bool:
    """True for the directory of Slurm's commands of a member of this pack."""
    return folder.startswith(f"{pack}/members/") and folder.endswith("/bin")


def compute_captured(environment: Mapping[str, str], export: str | None) -> dict[str, str]:
    """The part of the environment at submission that a job gets.

    Args:
        environment: The environment of csub.
        export: The option's value; None or ALL for everything.
    """
    in_a_job = "SLURM_JOB_ID" in environment
    environment = remove_member_variables(environment)
    own = {
        name: value
        for name, value in environment.items()
        if not in_a_job or not name.startswith(_OUTER_JOB) or name in _OF_THE_CLIENT
    }
    if export is None or exports_all(export):
        return own
    chosen: dict[str, str] = {}
    for word in () if is_none(export) else split_export(export):
        name, assigned, value = word.partition("=")
        if exports_all(word):
            chosen.update(own)
        elif assigned:
            chosen[name] = value
        elif name in own:
            chosen[name] = own[name]
    # Last, as in sbatch: --export changes none of these.
    chosen.update({name: own[name] for name in own if name.startswith(_ALWAYS)})
    chosen.pop("", None)
    return chosen


def split_export(export: str) -> list[str]:
    """Split the value of --export as sbatch does (find_quote_token in env.c).

    A comma divides where as many of each kind of quotes have begun as have ended; one kind inside
    the other counts, too. Quotes are taken away only where the whole word begins and ends with the
    same one. Where a quote is never closed, all that follows is one word.
    """
    words, begin = [], 0
    is_open = {"'": False, '"': False}
    for at, character in enumerate(f"{export},"):
        if character in is_open:
            is_open[character] = not is_open[character]
        elif character == "," and not any(is_open.values()):
            words.append(_strip_quotes(export[begin:at]))
            begin = at + 1
    words.append(export[begin:])
    return [word for word in words if word]


def _strip_quotes(word: str) -> str:
    is_quoted = len(word) > 1 and word[0] == word[-1] and word[0] in "'\""
    return word[1:-1] if is_quoted else word


# ---- `--mail-type` and `--mail-user`: which mails a job wants, and what they say -----------------
#
# The words are slurmctld's (src/slurmctld/agent.c: mail_job_info; src/common/proc_args.c:
# parse_mail_type), the same in 22.05 and 26.05.


class MailEvent(enum.StrEnum):
    """What a mail can tell; the values are what slurmctld writes into its subject."""

    BEGIN = "Began"
    END = "Ended"
    FAIL = "Failed"
    REQUEUE = "Requeued"
    TIME_LIMIT = "Reached time limit"
    TIME_LIMIT_90 = "Reached 90% of time limit"
    TIME_LIMIT_80 = "Reached 80% of time limit"
    TIME_LIMIT_50 = "Reached 50% of time limit"


TIME_SHARES = {
    MailEvent.TIME_LIMIT_50: 0.5,
    MailEvent.TIME_LIMIT_80: 0.8,
    MailEvent.TIME_LIMIT_90: 0.9,
    MailEvent.TIME_LIMIT: 1.0,
}
"""The part of its time limit that a job has then used."""

_ALL = ("BEGIN", "END", "FAIL", "REQUEUE")
# About burst buffers, which no member has, and about Slurm's own dependencies.
_EVENTS_NOT_OF_A_MEMBER = frozenset({"INVALID_DEPEND", "STAGE_OUT"})


@dataclass(frozen=True)
class MailRequest:
    """What a job asks for.

    Attributes:
        events: Names of MailEvent, sorted.
        each_task: ARRAY_TASKS: tasks of an array send mails of their own.
        user: `--mail-user`; empty for the user who submits.
    """

    events: tuple[str, ...]
    each_task: bool = False
    user: str = ""

    def wants(self, event: MailEvent) -> bool:
        """It asks for mails of this kind."""
        return event.name in self.events


def parse_mail_types(text: str) -> tuple[tuple[str, ...], bool]:
    """Read `--mail-type` as sbatch does: words in any case, unknown ones are passed over.

    Returns:
        The events' names, sorted, and whether each task of an array sends its own.

    Raises:
        ValueError: None of the words is known.
    """
    words = [word for word in text.upper().split(",") if word]
    if "NONE" in words:
        return (), False
    events: set[str] = set()
    for word in words:
        if word == "ALL":
            events.update(_ALL)
        elif word in MailEvent.__members__:
            events.add(word)
    known = events or "ARRAY_TASKS" in words or _EVENTS_NOT_OF_A_MEMBER & set(words)
    if not known:
        raise ValueError(
            f"valid ones are NONE, ALL, ARRAY_TASKS, {', '.join(MailEvent.__members__)}"
        )
    return tuple(sorted(events)), "ARRAY_TASKS" in words


def choose_end_event(state: MemberState, request: MailRequest) -> MailEvent | None:
    """Which mail tells of an end, as slurmctld chooses; None for none."""
    failed = state not in (MemberState.COMPLETED, MemberState.CANCELLED)
    if failed and request.wants(MailEvent.FAIL):
        return MailEvent.FAIL
    # As from 24.11 on; 22.05 counts a failure as no end, and says nothing.
    return MailEvent.END if request.wants(MailEvent.END) else None


def format_mail_time(seconds: float) -> str:
    """A time as slurmctld's mails write it: `[days-]hours:minutes:seconds`."""
    minutes, second = divmod(max(0, int(seconds)), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02d}:{minute:02d}:{second:02d}"
    return f"{days}-{clock}" if days else clock


def build_subject(shown: str, name: str, event: MailEvent, time_text: str, end_text: str) -> str:
    """The subject of a mail.

    Args:
        shown: What it is about: `Job_id=4711/3`, `Array Task Job_id=4711_3 (4712)`.
        name: The job's name.
        event: What happened.
        time_text: `Queued time 00:00:05` or `Run time 00:10:00`; empty for none.
        end_text: From `describe_end`; empty for none.
    """
    parts = [f"Slurm {shown} Name={name} {event.value}", time_text, end_text]
    # A line break would end the subject.
    return " ".join(", ".join(part for part in parts if part).split())


def describe_end(state: MemberState, code: ExitCode | None) -> str:
    """`COMPLETED, ExitCode 0`; the state alone where a signal ended it."""
    if code is None or code.signal:
        return state.value
    return f"{state.value}, ExitCode {code.code}"


def describe_ends(state: MemberState, codes: list[ExitCode]) -> str:
    """How the tasks of an array have ended, in one line: `Mixed, ExitCode [0-3]`.

    Args:
        state: How the last of them ended.
        codes: The exit codes of all.
    """
    signals = [code.signal for code in codes if code.signal]
    if signals:
        return f"Mixed, MaxSignal [{max(signals)}]"
    numbers = [code.code for code in codes] or [0]
    low, high = min(numbers), max(numbers)
    shown = "Mixed" if low == 0 and high > 0 else state.value
    return f"{shown}, ExitCode [{low}-{high}]"


# ---- File name patterns of sbatch (sbatch(1), filename pattern), for members ---------------------

_SPECIFIER = late_pattern(r"(?a)%(\d*)([%AaJjNnstuxb])")
_WIDTH_MOST = 10


@dataclass(frozen=True)
class PatternValues:
    """What the specifiers stand for.

    Attributes:
        job_id: Slurm job id (of the array).
        own_id: The member's SLURM_JOB_ID.
        is_alone_in_it: No other member has that.
        number: The member's number.
        is_array: The member came by `--array`.
        name: Job name.
        node: Short host name.
        user: User name.
    """

    job_id: str
    own_id: str
    is_alone_in_it: bool
    number: int
    is_array: bool
    name: str
    node: str
    user: str


def expand_pattern(pattern: str, values: PatternValues) -> str:
    """Expand `%j %A %a %x %N %u %J %n %t %s %b %%`; the width in `%4j` pads with zeros.

    A backslash anywhere switches expansion off, as in sbatch. Task, node and step specifiers are
    those of a batch script: 0, 0 and `batch`.
    """
    if "\\" in pattern:
        return pattern.replace("\\", "")
    replacements = {
        "%": "%",
        "A": values.job_id,
        "a": str(values.number),
        "J": values.own_id,
        "j": values.own_id,
        "N": values.node,
        "n": "0",
        "s": "batch",
        "t": "0",
        "u": values.user,
        "x": values.name,
        "b": str(values.number % 10),
    }

    def replace(match: re.Match[str]) -> str:
        text = replacements[match[2]]
        return text.zfill(_read_width(match[1])) if text.isdigit() else text

    return _SPECIFIER.sub(replace, pattern)


def expand_array_id(pattern: str, job_id: str) -> str:
    """Expand `%A` alone, and leave the rest to Slurm."""
    return _expand_some(pattern, {"A": job_id})


def expand_own_ids(pattern: str, own_id: str, task: tuple[str, str] | None) -> str:
    """Expand what a step's file has of a job's ids, and leave the rest to Slurm.

    Args:
        pattern: With `%j`, `%J`, `%A`, `%a`.
        own_id: The member's SLURM_JOB_ID.
        task: Its array and number there; None where it is in none.
    """
    texts = {"j": own_id, "J": own_id, "A": own_id}
    return _expand_some(pattern, texts if task is None else texts | {"A": task[0], "a": task[1]})


def _expand_some(pattern: str, texts: Mapping[str, str]) -> str:
    if "\\" in pattern:
        return pattern

    def replace(match: re.Match[str]) -> str:
        text = texts.get(match[2])
        if text is None:
            return match[0]
        # Of `%J` the width is the job's; the step's number is known to Slurm alone.
        return text.zfill(_read_width(match[1])) + (".%s" if match[2] == "J" else "")

    return _SPECIFIER.sub(replace, pattern)


def _read_width(digits: str) -> int:
    """The width of a specifier; Slurm takes 10 at most, and Python no more than 4300 digits."""
    return min(_WIDTH_MOST, int(digits.lstrip("0")[:18] or "0"))


def choose_output_paths(
    output: str | None, error: str | None, values: PatternValues, *, alone: bool
) -> tuple[str, str | None]:
    """The member's output and error file, never the same for two members.

    Args:
        output: `--output`, or None for `slurm-%j.out` (a lone job) or `slurm-%A_%a.out`.
        error: `--error`, or None where both go to one file.
        values: What the specifiers stand for.
        alone: The job is no array task and the only member, so nothing can collide.

    Returns:
        Paths as the user wrote them (relative to the working directory); the second is None
        where both go to one file. `/dev/null` stays what it is. A pattern that is the same for
        other members gets `_<number>` before its suffix: `run.log` becomes `run_3.log`.
    """
    if output is None:
        output = "slurm-%j.out" if alone else "slurm-%A_%a.out"
    return (
        _choose_path(output, values, alone=alone),
        None if error is None else _choose_path(error, values, alone=alone),
    )


def is_device(path: str) -> bool:
    """A device, which members may share; /dev/shm and /dev/mqueue hold ordinary files."""
    return path.startswith("/dev/") and not path.startswith(("/dev/shm/", "/dev/mqueue/"))


def _choose_path(pattern: str, values: PatternValues, *, alone: bool) -> str:
    path = expand_pattern(pattern, values)
    if alone or is_device(path) or _tells_members_apart(pattern, values):
        return path
    head, slash, last = path.rpartition("/")
    stem, dot, suffix = last.rpartition(".")
    last = f"{stem}_{values.number}.{suffix}" if dot and stem else f"{last}_{values.number}"
    return f"{head}{slash}{last}"


def _tells_members_apart(pattern: str, values: PatternValues) -> bool:
    telling = "ajJ" if values.is_alone_in_it else "a"
    return "\\" not in pattern and any(m[2] in telling for m in _SPECIFIER.finditer(pattern))
