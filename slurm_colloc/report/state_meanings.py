"""What each state and each end of a member means, what comes next, what can be done; pure."""

from __future__ import annotations

import difflib

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.member import EndCause, MemberState
from slurm_colloc.model.printable import align_columns, escape_controls
from slurm_colloc.report.member_survey import (
    HELD as HELD_REASON,
)
from slurm_colloc.report.member_views import (
    MemberView,
    PackView,
)
from slurm_colloc.report.report_sentences import WORDS, find_word
from slurm_colloc.report.waiting_reasons import REASONS, Reason, find_reason
from slurm_colloc.report.why_line import Facts, explain_why


@dataclass(frozen=True)
class Meaning:
    """A state, or the class of an end, explained.

    Attributes:
        meaning: What it says.
        next: What will happen by itself.
        can: What the user can do: a command with `{id}` for the member, and what it does.
    """

    meaning: str
    next: str
    can: tuple[tuple[str, str], ...]


_RETRY = ("csub retry {id}", "try it again, with what was stored at submission")
_SHOW = ("csub show {id}", "request, limits and files")
_LOGS = ("csub logs {id}", "what it printed")
_CANCEL = ("csub cancel {id}", "end it")
_WHY = ("csub show {id}", "which lines show it (Evidence)")
_LIMITS = ("csub --gpu-mem=... SCRIPT", "submit it again and say how much GPU memory it needs")

_NEVER = "Waiting does not help: it starts only if its request or Slurm's settings change."

MEANINGS: dict[MemberState, Meaning] = {
    MemberState.PENDING: Meaning(
        "It has not started, or was put back into the queue.",
        "It starts by itself: its pack when Slurm finds a place, the member when its pack has one.",
        (
            ("csub why {id}", "what it waits for"),
            ("csub hold {id}", "keep it from starting, until csub release"),
            _CANCEL,
        ),
    ),
    MemberState.RUNNING: Meaning(
        "Its script runs.",
        "It ends by itself, or at its wall limit: SIGTERM, then SIGKILL after KillWait.",
        (
            ("csub logs -f {id}", "what it prints"),
            ("csub shell {id}", "a shell inside its CPUs and environment"),
            ("csub requeue {id}", "end it and start it again"),
            _CANCEL,
        ),
    ),
    MemberState.COMPLETED: Meaning(
        "Its script ended with exit code 0.", "Nothing more.", (_LOGS, _SHOW)
    ),
    MemberState.FAILED: Meaning(
        "Its script ended with an exit code other than 0 or by a signal, or could not start.",
        "Nothing more. The other members are not affected.",
        (_LOGS, _SHOW, _RETRY),
    ),
    MemberState.CANCELLED: Meaning(
        "It was ended by csub cancel, by scancel, or by scancel inside its script.",
        "Nothing more.",
        (_LOGS, _SHOW),
    ),
    MemberState.TIMEOUT: Meaning(
        "It reached its wall limit (--time multiplied by the accepted slowdown), or its pack's.",
        "Nothing more. The other members go on, unless the whole pack ran out of time.",
        (_LOGS, ("csub retry {id} --time=...", "try it again with more time")),
    ),
    MemberState.OUT_OF_MEMORY: Meaning(
        "It used more host memory than its limit, and the kernel ended it. This is not the "
        "GPU's memory.",
        "Nothing more. The other members are not affected.",
        (_LOGS, _SHOW, ("csub retry {id} --mem=...", "try it again with more host memory")),
    ),
    MemberState.PREEMPTED: Meaning(
        "Slurm gave its pack's place to a job with a higher priority and did not requeue it.",
        "Nothing more. With --requeue, or the site's JobRequeue, it would start again.",
        (_LOGS, _RETRY, ("csub --requeue SCRIPT", "so that the next run survives this")),
    ),
    MemberState.NODE_FAIL: Meaning(
        "The node of its pack failed, and Slurm did not requeue the job.",
        "Nothing more. With --requeue, or the site's JobRequeue, it would start again.",
        (_LOGS, _RETRY, ("csub --requeue SCRIPT", "so that the next run survives this")),
    ),
    MemberState.REQUEUED: Meaning(
        "Its pack was over before it started, and csub submitted it again in another pack.",
        "It continues under the new id; csub also finds it by the old one.",
        (
            ("csub show {id}", "the member under its new id"),
            ("csub queue", "all members that wait or run"),
        ),
    ),
    MemberState.LOST: Meaning(
        "Its Slurm job is gone, and how the member ended was not recorded: its node or runner was "
        "killed at once, or the nodes do not see the state directory.",
        "Nothing more. It is not started again: it may have done its work. With --requeue, or the "
        "site's JobRequeue, a pack whose runner is killed starts again, at most twice.",
        (_LOGS, ("sacct -j {job}", "what Slurm's accounting knows of the job"), _SHOW),
    ),
}

HELD = Meaning(
    "It is held: it keeps its place but is not started.",
    "Nothing until it is released.",
    (("csub release {id}", "release it"), _CANCEL),
)

CAUSES: dict[str, Meaning] = {
    EndCause.SUCCESS: MEANINGS[MemberState.COMPLETED],
    EndCause.EXIT_CODE: Meaning(
        "Its script ended by itself with an exit code other than 0.",
        "Nothing more. The other members are not affected.",
        (_LOGS, _SHOW),
    ),
    EndCause.SIGNAL: Meaning(
        "A signal ended its script: a crash (SIGSEGV, SIGABRT) or a kill command.",
        "Nothing more. The other members are not affected.",
        (_LOGS, _SHOW),
    ),
    EndCause.TIME_LIMIT: MEANINGS[MemberState.TIMEOUT],
    EndCause.CUDA_OUT_OF_MEMORY: Meaning(
        "It needed more GPU memory than its limit under MPS, or than the other members left.",
        "If it may be requeued, it runs again with twice its share, in the end alone; the other "
        "members go on. It fails if it runs out of memory even alone.",
        (_LOGS, _LIMITS, ("csub --share=exclusive SCRIPT", "submit it again, alone on a GPU")),
    ),
    EndCause.HOST_OUT_OF_MEMORY: MEANINGS[MemberState.OUT_OF_MEMORY],
    EndCause.CUDA_FAULT: Meaning(
        "Its program failed on the GPU, without affecting others: a device-side assert, or an "
        "illegal address outside MPS.",
        "Nothing more. The other members are not affected.",
        (
            _LOGS,
            (
                "CUDA_LAUNCH_BLOCKING=1",
                "run again with it set: the traceback then shows the right line",
            ),
        ),
    ),
    EndCause.MPS_CULPRIT: Meaning(
        "Its program had a fatal fault on the GPU, such as an illegal address. Under MPS that ends "
        "all clients on the GPU. The fault is its own: it occurred again when the program ran "
        "apart from the others, or the program was the only client.",
        "It is not started again. The same script with the same arguments runs alone until it has "
        "succeeded alone once.",
        (
            _LOGS,
            _WHY,
            ("compute-sanitizer PROGRAM", "NVIDIA's tool, finds the faulty kernel"),
            (
                "csub --share=timeslice SCRIPT",
                "share without MPS: a fault ends only its own process",
            ),
        ),
    ),
    EndCause.MPS_VICTIM: Meaning(
        "Another member's fault on the GPU ended it: under MPS, it ends all clients on the GPU.",
        "If it may be requeued, it runs again without MPS, at most twice; its output is appended "
        "to the same file.",
        (_LOGS, _WHY, ("csub --requeue SCRIPT", "submit it again so that it survives this")),
    ),
    EndCause.MPS_SUSPECT: Meaning(
        "A fault on the GPU ended all clients of MPS, including this one, and neither MPS nor the "
        "driver says which of them caused it.",
        "If they may be requeued, all run again without MPS, where a fault ends only its own "
        "process: the one that fails again is the culprit, and the others finish. At most twice.",
        (_LOGS, _WHY, ("csub --requeue SCRIPT", "submit it again so that it survives this")),
    ),
    EndCause.MPS_GONE: Meaning(
        "Something other than csub ended the pack's MPS server or daemon, and with it the GPU work "
        "of its members, whatever exit code their scripts gave.",
        "If it may be requeued, it runs again under a new one, and if that happens again without "
        "MPS; its output is appended to the same file.",
        (_LOGS, _WHY, ("csub --requeue SCRIPT", "submit it again so that it survives this")),
    ),
    EndCause.MPS_FULL: Meaning(
        "The MPS server had as many clients as it accepts (48 on a GPU, 60 since CUDA 13.1): "
        "members with several GPU processes count several times.",
        "If it may be requeued, it runs again without MPS, at most twice.",
        (_LOGS, ("csub --degree=N SCRIPT", "submit it again with fewer members at a time")),
    ),
    EndCause.GPU_LOST: Meaning(
        "A GPU of its pack was lost: the driver no longer shows it.",
        "If it may be requeued, it runs again on another GPU of its Slurm job, at most twice; its "
        "output is appended to the same file.",
        (_LOGS, _WHY, ("csub --requeue SCRIPT", "submit it again so that it survives this")),
    ),
    EndCause.NOT_STARTED: Meaning(
        "It could not be started, or its GPU could not be shared in the only mode allowed.",
        "Nothing more.",
        (("csub show {id}", "why"), ("csub --share=auto SCRIPT", "allow any sharing mode")),
    ),
    EndCause.NODE_FAILURE: MEANINGS[MemberState.NODE_FAIL],
    EndCause.CANCELLED: MEANINGS[MemberState.CANCELLED],
    EndCause.PREEMPTED: MEANINGS[MemberState.PREEMPTED],
    EndCause.LOST: MEANINGS[MemberState.LOST],
}


def explain_member(view: PackView, member: MemberView, facts: Facts) -> str:
    """What a member is, why, what comes next, and what can be done."""
    held = member.state is MemberState.PENDING and (member.is_held or member.reason == HELD_REASON)
    cause = view.cause_of(member)
    meaning = HELD if held else MEANINGS[member.state]
    lines = [str(explain_why(view, member, facts))]
    if cause and not held:
        label = "Before:" if member.state is MemberState.PENDING else "End:"
        lines.append(f"  {label:<10} {cause}")
        meaning = CAUSES.get(cause, meaning)
    evidence = member.record.evidence if member.record is not None else ()
    lines += [f"  {'Shown by:':<10} {line}" for line in evidence]
    reason = find_reason(member.reason) if member.state is MemberState.PENDING else None
    if reason is not None and reason.is_for_ever and not held:
        meaning = replace(meaning, next=_NEVER)
    lines += _render_meaning(meaning, str(member.member))
    if reason is not None and reason.advice and not held:
        lines.append(f"  Hint:      {_render_advice(reason, view.job_id or '')}")
    return "".join(f"{escape_controls(line)}\n" for line in lines)


def explain_word(text: str) -> str:
    """What a state, the class of an end, a word of a report or one of Slurm's reasons means.

    Raises:
        UsageProblem: It is none of these.
    """
    for state, meaning in MEANINGS.items():
        if text.upper() == state.value:
            return "\n".join([state.value, *_render_meaning(meaning, "ID")]) + "\n"
    for cause, meaning in CAUSES.items():
        if text.lower() == cause.lower():
            return "\n".join([cause, *_render_meaning(meaning, "ID")]) + "\n"
    names = {name.lower(): name for name in REASONS}
    name = names.get(text.lower(), text)
    reason = find_reason(name)
    # A word that is a reason, too, is the reason where it is written as Slurm writes that.
    word = find_word(text) if reason is None or text != name else None
    if word is not None:
        return f"{word[0]}\n  Means:     {word[1]}\n"
    if reason is None:
        known = {
            **{state.value.lower(): state.value for state in MemberState},
            **names,
            **{cause.value.lower(): cause.value for cause in EndCause},
            **{name.lower(): name for name in WORDS},
        }
        # Slurm's reason `None` is near to many a word, and meant by few.
        near = difflib.get_close_matches(text.lower(), known.keys() - {"none"}, n=1)
        raise UsageProblem(
            f"{text!r} is not a member, state, reason or word of a report that csub knows",
            hint=f"did you mean {known[near[0]]}?"
            if near
            else "csub queue shows states and reasons, squeue(1) lists all of Slurm's",
        )
    lines = [name, f"  Means:     {reason.meaning}."]
    if reason.advice:
        lines.append(f"  Hint:      {_render_advice(reason, '')}")
    return "\n".join(lines) + "\n"


def _render_advice(reason: Reason, job_id: str) -> str:
    return (f"{reason.advice}.").replace("=ID", f"={job_id}" if job_id else "=ID")


def _render_meaning(meaning: Meaning, name: str) -> list[str]:
    job = name.partition("/")[0]
    commands = [
        (command.format(id=name, job=job), what.format(id=name, job=job))
        for command, what in meaning.can
    ]
    lines = [f"  Means:     {meaning.meaning}", f"  Next:      {meaning.next}"]
    for index, line in enumerate(align_columns(commands)):
        label = "You can:" if index == 0 else ""
        lines.append(f"  {label:<10} {line}")
    return lines
