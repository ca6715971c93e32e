"""Situations that a report has to tell of, from recordings and from packs made for it.

`python -m tests.report.situations` writes situations.md next to this: what the report says of each.
"""

from __future__ import annotations

import atexit
import copy
import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from slurm_colloc.report.advice import list_advice
from slurm_colloc.report.headline import tell_headline
from slurm_colloc.report.page.timelines import PageSource

from ..recordings.recorded import H200, RECORDED
from ..recordings.replaying import Replay
from .generated import T0, Truth, build_summary, make_pack

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "tests" / "report" / "situations.md"

_LENGTH_S = 24.0
_ALONE = 20.0
_ACCEPTED = 1.5


@dataclasses.dataclass(frozen=True)
class Situation:
    """Something that happened, and what is known of it.

    Attributes:
        about: What happened, for people.
        make: Makes its packs in a folder.
        recorded: It needs the recordings.
    """

    about: str
    make: Callable[[Path], list[PageSource]]
    recorded: bool = False


_HEAD = """\
# What a report says of 25 situations

For researchers: the first sentence of `csub report` and of its page, and the notes below it, for
packs that were recorded on an H200 or made for this (`tests/report/situations.py`, which writes
this page; a test compares them).
"""


@cache
def _read_template() -> Any:
    """A pack of two, as csub sums it up."""
    with tempfile.TemporaryDirectory() as folder:
        truths = [Truth(number, 0, _LENGTH_S, lambda _: 12.0) for number in (1, 2)]
        return build_summary(make_pack(Path(folder), truths), Path(folder))


def make_summary(
    count: int,
    slowdowns: float | Sequence[float] = 1.65,
    *,
    first: int = 1,
    job: str = "54",
    length_s: float = _LENGTH_S,
    serial_s: float | None = None,
) -> Any:
    """The summary of a pack in which so many trainings ran all the time.

    Args:
        count: Members.
        slowdowns: How many times slower than alone each was.
        first: The first member's number.
        job: Its Slurm job.
        length_s: From the first start to the last end.
        serial_s: How long they take one after the other; by their slowdowns where not given.
    """
    made = copy.deepcopy(_read_template())
    each = [slowdowns] * count if isinstance(slowdowns, float | int) else list(slowdowns)
    model = made["members"][0]
    model |= {"unknown": {}, "notes": [], "interference": [], "predicted_slowdown": None}
    members = []
    for place, slowdown in enumerate(each):
        number = first + place
        member = copy.deepcopy(model) | {
            "member": number, "id": f"{job.partition('_')[0]}/{number}", "name": "train.sh",
            "script": "train.sh", "arguments": ["--lr", f"0.{number}"], "state": "COMPLETED",
            "cause": "success", "exit_code": 0, "exit_signal": 0, "started_at": T0,
            "ended_at": T0 + length_s, "steps": int(_ALONE / slowdown * length_s),
            "solo": {"steps_per_s": _ALONE, "source": "profile", "n": 2, "measured_by": "alone"},
            "slowdown": slowdown, "accepted_slowdown": _ACCEPTED,
            "solo_time_s": length_s / slowdown,
            "request": {"cpus": 2, "gpus": 1, "host_memory_mb": 1024, "gpu_memory_mb": None,
                        "time_limit_s": 600},
        }  # fmt: skip
        member["rate"] |= {"steps_per_s": _ALONE / slowdown, "unknown": None}
        member["sm_share"] = {"value": 0.15, "attribution": "modelled"}
        member["energy_j"] = {"value": 4500.0, "attribution": "modelled"}
        member["stall"] |= {"data": 0.02, "sharing": 1 - 1 / slowdown}
        members.append(member)
    made |= {
        "job": job, "submission": job.partition("_")[0], "name": "train.sh", "final": True,
        "members": members, "window": {"from": T0, "to": T0 + length_s}, "degree": None,
    }  # fmt: skip
    made["coverage"] |= {"share": 1.0, "gaps": [], "gap_s": 0.0}
    made["setup"] |= {"notes": [], "mode": "mps", "asked": "auto"}
    made["pack"] |= {
        "members": count, "members_most": count, "overlap_s": length_s if count > 1 else 0.0,
        "serial_s": sum(length_s / slowdown for slowdown in each) if serial_s is None else serial_s,
        "shared_s": length_s, "unknown": [], "slowdown_unknown": [],
    }  # fmt: skip
    return made


def _source(summary: Any, folder: Path) -> PageSource:
    return PageSource(summary, folder / str(summary["job"]))


def _made(change: Callable[[Any], object], *args: Any, **named: Any) -> Any:
    """Makes one pack, changed."""

    def make(folder: Path) -> list[PageSource]:
        summary = make_summary(*args, **named)
        change(summary)
        return [_source(summary, folder)]

    return make


def _same(_summary: Any) -> None:
    return


def _recorded(name: str) -> Callable[[Path], list[PageSource]]:
    """A recorded pack, with the usage profile that the one alone has left."""

    def make(_folder: Path) -> list[PageSource]:
        replay = _replay()
        return [PageSource(replay.summaries[name], replay.packs[name])]

    return make


@cache
def _replay() -> Replay:
    folder = tempfile.mkdtemp(prefix="csub-situations-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Replay(Path(folder))


def _set_room(summary: Any) -> None:
    point = {"stp": 2.4, "error": 0.05, "worst_slowdown": 1.67, "worst_member": 1,
             "worst_bound": _ACCEPTED, "window_s": 8.0}  # fmt: skip
    summary["degree"] = {
        "state": "SETTLED", "degree": 4, "places": 8, "room": 3, "parked": [], "why": None,
        "cost_s": 0.0, "cost_share": 0.0, "rates_alone": [], "decisions": [], "cores": [],
        "workers": [],
        "curve": [{"degree": 4, "members": [1, 2, 3, 4], **point}],
    }  # fmt: skip


def _fail_one(summary: Any) -> None:
    summary["members"][3] |= {"state": "FAILED", "cause": "exit code", "exit_code": 3,
                              "ended_at": T0 + 5}  # fmt: skip


def _leave_gpu(summary: Any) -> None:
    summary["members"][0]["gpu_memory_mb"] = {
        "peak": 0.0, "attribution": "per_process", "by": "nvml", "allocator_peak": None,
        "outside_allocator": None,
    }  # fmt: skip


def _look_busy(summary: Any) -> None:
    for metric, mean in (("utilization", 0.97), ("sm_active", 0.12)):
        summary["gpu_use"][metric] = {
            "mean": mean, "p50": mean, "p95": mean, "max": mean, "attribution": "whole_gpu"
        }  # fmt: skip


def _ask_much(summary: Any) -> None:
    for member in summary["members"]:
        member["request"]["host_memory_mb"] = 16384
        member["host_memory_peak_mb"] = 2040.0


def _take_gpu(summary: Any) -> None:
    summary["gpu"] = {"uuid": None, "model": None, "memory_mb": None}
    summary["gpu_use"] = dict.fromkeys(summary["gpu_use"])
    summary["setup"] = None
    for member in summary["members"]:
        member |= {"gpu_memory_mb": None, "sm_share": None, "energy_j": None, "solo": None,
                   "slowdown": None}  # fmt: skip
        member["request"]["gpus"] = 0
    summary["pack"]["serial_s"] = None


def _lose_readings(summary: Any) -> None:
    summary["coverage"] |= {"share": 0.7, "gaps": [[T0 + 5, T0 + 12, "monitor: stopped"]],
                            "gap_s": 7.0}  # fmt: skip


def _go_unwatched(summary: Any) -> None:
    summary["coverage"] |= {
        "share": None,
        "not_watched": "the pack has 200 MB of host memory, and the monitor would take 90 MB; "
        "packs with at least 1024 MB are watched",
        "not_watched_kind": "host_memory",
    }
    summary["pack"]["serial_s"] = None
    for member in summary["members"]:
        member |= {"steps": None, "solo": None, "slowdown": None, "gpu_memory_mb": None}
        member["rate"] |= {"steps_per_s": None}


def _keep_running(summary: Any) -> None:
    summary["final"] = False
    for member in summary["members"]:
        member |= {"state": "RUNNING", "ended_at": None, "cause": None, "exit_code": None}


def _cancel(summary: Any) -> None:
    for member in summary["members"][2:]:
        member |= {"state": "CANCELLED", "cause": "cancelled", "exit_code": None}


def _resume(summary: Any) -> None:
    for member in summary["members"]:
        member["starts"] = 2


def _park(summary: Any) -> None:
    _set_room(summary)
    summary["degree"] |= {
        "room": 0, "places": 6,
        "why": "no more than 4 run at once: 4 together make 2.4 times the progress of one alone, "
        "6 make 2.3",
    }  # fmt: skip
    summary["pack"]["members_most"] = 4
    for member in summary["members"][4:]:
        member["stopped_s"] = 11.0


def _have_few_workers(summary: Any) -> None:
    _set_room(summary)
    summary["degree"] |= {
        "room": 0, "workers": [{"member": 1, "workers": 2, "cores": 10, "advised": 8}]
    }  # fmt: skip
    for member in summary["members"]:
        member["stall"]["data"] = 0.75


def _measure_late(summary: Any) -> None:
    _set_room(summary)
    summary["degree"] |= {"state": "SETTLED", "degree": 2, "room": 0, "places": 4}


def _measure_nothing(summary: Any) -> None:
    _set_room(summary)
    summary["degree"] |= {"state": "OFF", "degree": 1, "room": None, "places": 4, "curve": []}


def _fall_back(summary: Any) -> None:
    summary["setup"] |= {"mode": "timeslice", "reason": "the MPS daemon did not start"}


def _be_short(summary: Any) -> None:
    (member,) = summary["members"]
    member |= {"solo": None, "slowdown": None, "steps": 31}
    member["rate"] |= {"steps_per_s": None, "unknown": "less than 5 s of settled steps"}
    summary["gpu_use"]["sm_active"] = None


def _make_array(folder: Path) -> list[PageSource]:
    packs = [
        make_summary(8, 1.4, first=8 * index, job=f"54_{900 + index}", length_s=600.0 + 60 * index)
        for index in range(3)
    ]
    _fail_last(packs[2])
    return [_source(summary, folder) for summary in packs]


def _fail_last(summary: Any) -> None:
    summary["members"][-1] |= {"state": "FAILED", "cause": "exit code", "exit_code": 1}


def _make_taken_over(folder: Path) -> list[PageSource]:
    taker = make_summary(6, 1.3, job="54_900", length_s=300.0)
    other = make_summary(2, 1.2, first=7, job="54_901", length_s=180.0)
    log = folder / "54_900"
    log.mkdir(parents=True, exist_ok=True)
    (log / "events.jsonl").write_text(
        f'{{"at": {T0 + 60}, "event": "took_over", "member": 5, "source": "b"}}\n'
    )
    return [_source(taker, folder), _source(other, folder)]


SITUATIONS: Mapping[str, Situation] = {
    "one": Situation("One training, alone on an H200", _recorded("alone"), recorded=True),
    "two": Situation("Two trainings, both nearly as fast as alone", _made(_same, 2, 1.04)),
    "seven": Situation("Seven under MPS on an H200", _recorded("mps"), recorded=True),
    "twelve": Situation(
        "Twelve in one pack", _made(_same, 12, [1.2 + 0.02 * n for n in range(12)])
    ),
    "slower than the bound": Situation(
        "Four, each slower than was accepted; there was room for three more",
        _made(_set_room, 4, 1.65),
    ),
    "measured late": Situation(
        "Four that began together, of which two at once were measured to be best",
        _made(_measure_late, 4, 1.65),
    ),
    "measured not": Situation(
        "The same where nothing was measured: its record says one at once",
        _made(_measure_nothing, 4, 1.65),
    ),
    "did not pay": Situation("Two that are in each other's way", _made(_same, 2, 2.4)),
    "one failed": Situation("One of four ended with exit code 3", _made(_fail_one, 4, 1.2)),
    "never on the GPU": Situation("One of two never used the GPU", _made(_leave_gpu, 2, 1.1)),
    "looks busy": Situation("Utilization 97 %, SM 12 %", _made(_look_busy, 1, 1.0)),
    "waits for data": Situation(
        "Two whose DataLoader is slow, on an H200", _recorded("delayed"), recorded=True
    ),
    "too few workers": Situation(
        "Two that wait for data, one of them next to idle cores", _made(_have_few_workers, 2, 1.3)
    ),
    "asks for too much": Situation("Eight times the memory that is used", _made(_ask_much, 3, 1.3)),
    "no GPU": Situation("Two jobs without a GPU", _made(_take_gpu, 2, 1.0)),
    "gaps": Situation("The monitor was stopped for a while", _made(_lose_readings, 4, 1.3)),
    "not watched": Situation("Two too small to be watched", _made(_go_unwatched, 2, 1.0)),
    "still running": Situation("Four that still run", _made(_keep_running, 4, 1.3)),
    "cancelled": Situation("Two of four were cancelled", _made(_cancel, 4, 1.3)),
    "resumed": Situation("Four that were preempted and went on", _made(_resume, 4, 1.3)),
    "parked": Situation("Six of which four ran at once", _made(_park, 6, 1.45)),
    "fallback": Situation("Time slices in place of MPS", _made(_fall_back, 4, 1.9)),
    "taken over": Situation("Members of one pack were taken over by another", _make_taken_over),
    "array": Situation("An array of 24 in three packs", _make_array),
    "short": Situation(
        "A training that was over in three seconds", _made(_be_short, 1, 1.0, length_s=3.2)
    ),
}


def is_there(situation: Situation) -> bool:
    """Whether what it needs is: an sdist has no recordings."""
    return not situation.recorded or H200.is_dir()


def describe(situation: Situation, folder: Path) -> tuple[str, list[str]]:
    """What the report says first, and what it advises."""
    summaries = [source.summary for source in situation.make(folder)]
    return tell_headline(summaries), [advice.say() for advice in list_advice(summaries)]


def build_document() -> str:
    """The text of situations.md."""
    lines = [*_HEAD.splitlines(), ""]
    for situation in SITUATIONS.values():
        with tempfile.TemporaryDirectory() as folder:
            headline, notes = describe(situation, Path(folder))
        lines += [f"**{situation.about}.**", "", f"> {headline}", ""]
        if notes:
            lines += [*(f"- {note}" for note in notes), ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    assert set(RECORDED)
    DOCUMENT.write_text(build_document())
