"""The summary that a pack's end has left: where it lies, and reading it; light to load.

Also: whether what a file says is a summary: it may be damaged, or another user's; a pack's summary
for readers: the one that its end has left, else one made now.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from slurm_colloc.errors import StateError
from slurm_colloc.metrics.presence import Attribution
from slurm_colloc.model.records import is_number
from slurm_colloc.report.member_views import PackView
from slurm_colloc.store.all_packs import StateReader
from slurm_colloc.store.atomic_files import read_json
from slurm_colloc.store.member_states import read_attempt
from slurm_colloc.store.report_files import report_directory

# ---- Whether what a file says is a summary: it may be damaged, or another user's; pure -----------
#
# Only what readers take out of it is looked at; the fields of a newer csub are passed over.

Summary = dict[str, Any]
"""The value of summary.json."""

Check = Callable[[Any], bool]
_LARGEST = 1e18
_ATTRIBUTIONS = frozenset(Attribution)


def fits_summary(value: Any) -> bool:
    """Whether a report can be made of it: each field that is read has the kind that it should."""
    return _summary(value)


def _is_number(value: Any) -> bool:
    return value is None or (is_number(value) and abs(value) < _LARGEST)


_PAIR = 2


def _is_result(value: Any) -> bool:
    """A result of a program's own may be as large as it likes."""
    return value is None or is_number(value)


def _is_count(value: Any) -> bool:
    return _is_number(value) and isinstance(value, int) and value >= 0


def _is_moment(value: Any) -> bool:
    """Seconds since the epoch, as a calendar has them."""
    return _is_number(value) and value is not None and 0 <= value < 1e11


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_attribution(value: Any) -> bool:
    return isinstance(value, str) and value in _ATTRIBUTIONS


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _maybe(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _each(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _values(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is(fields: Mapping[str, Check]) -> Check:
    return lambda value: (
        isinstance(value, dict)
        and all(name in value and own(value[name]) for name, own in fields.items())
    )


def _all(check: Check, names: str) -> dict[str, Check]:
    return dict.fromkeys(names.split(), check)


_part = _maybe(_is({"value": _is_number, "attribution": _is_attribution}))
_change = _is(
    {"at": _is_moment, "came": _each(_is_count), "went": _each(_is_count)}
    | _all(lambda v: v is not None and _is_number(v), "before_steps_per_s after_steps_per_s ratio")
)
_power = _maybe(_is(_all(_is_number, "limit_w slowdown energy_share")))
_member = _is(
    {
        **_all(_is_count, "member starts"),
        **_all(_is_text, "id name state"),
        **_all(_is_number, "steps slowdown cpu_cores host_memory_peak_mb"),
        **_all(_maybe(_is_moment), "started_at ended_at"),
        "cause": _maybe(_is_text),
        "rate": _is(_all(_is_number, "steps_per_s samples_per_s")),
        "solo": _maybe(_is({"steps_per_s": _is_number})),
        "gpu_memory_mb": _maybe(
            _is({"peak": _is_number, "attribution": _is_attribution, "by": _maybe(_is_text)})
        ),
        "sm_share": _part,
        "energy_j": _part,
        "stall": _is(
            _all(_is_number, "data host device sharing data_alone overlap alone_s")
            | {"attribution": _maybe(_is_attribution)}
        ),
        "interference": _each(_change),
        "unknown": _values(_is_text),
        "notes": _each(_is_text),
        **_all(_is_number, "predicted_slowdown together_slowdown accepted_slowdown stopped_s"),
        **_all(_is_number, "exit_code exit_signal solo_time_s unmatched_lines"),
        # They are unknown where what was kept of the job is damaged.
        **_all(_maybe(_is_text), "script directory node mode"),
        "arguments": _maybe(_each(_is_text)),
        "gpu_uuids": _each(_is_text),
        "parameters": _values(_is_text),
        "retry_of": _maybe(_is_text),
        "metrics": _values(_is({**_all(_is_result, "last least greatest"), "source": _is_text})),
        "mig": _maybe(
            _is(
                _all(_maybe(_is_text), "planned profile uuid shared_by") | {"memory_mb": _is_number}
            )
        ),
        "joined_at": _maybe(_is_moment),
        "request": _is(
            _all(_is_number, "cpus host_memory_mb gpu_memory_mb time_limit_s")
            | {"gpus": lambda value: value is not None and _is_number(value)}
        ),
    },
)
_pack = _is(
    {
        **_all(_is_number, "stp stp_at_least antt serial_s shared_s gpu_hours_saved kwh_saved"),
        **_all(_is_number, "idle_power_w"),
        **_all(_is_count, "members members_most"),
        **_all(_maybe(_is_text), "kwh_how idle_power_from"),
        "overlap_s": lambda value: value is not None and _is_number(value),
        "fairness": _maybe(_is({"jain": _is_number})),
        "unknown": _each(_is_text),
        "slowdown_unknown": _each(_is_text),
        "prediction": _maybe(
            _is(
                {"members": _is_count, "over": _is_text}
                | _all(lambda v: v is not None and _is_number(v), "predicted measured error")
            )
        ),
    },
)
_hours = _is(_all(_is_number, "asked used"))
_open = _is({**_all(_is_count, "for joined"), "cpu_hours": _hours, "host_memory_gb_hours": _hours})
_chain = _is(
    {
        "links": _each(_is_text),
        "links_most": _is_count,
        "handovers": _each(_is(_all(_is_number, "waited_s interruption_s overlap_s"))),
        **_all(_is_number, "interruption_s overlap_s"),
        "problem": _maybe(_is_text),
    }
)
_coverage = _is(
    {
        **_all(_is_number, "share gap_s"),
        "not_watched": _maybe(_is_text),
        "not_watched_kind": _maybe(_is_text),
        "gaps": lambda value: isinstance(value, list),
        "not_readable": lambda value: isinstance(value, dict),
    }
)
_degree = _is(
    {
        "degree": _is_count,
        "room": _maybe(_is_count),
        "why": _maybe(_is_text),
        **_all(_is_number, "cost_s cost_share"),
        "curve": _each(
            _is(
                {"degree": _is_count}
                | _all(_is_number, "stp worst_slowdown window_s")
            )
        ),
        "decisions": _each(
            _is({"at": _is_moment, "degree": _is_count, "reason": _is_text})
        ),
        "cores": _each(
            _is(_all(_is_count, "member own cores most of") | _all(_is_number, "wait_share gain"))
        ),
        "workers": _each(_is(_all(_is_count, "member workers cores advised"))),
    }
)  # fmt: skip
_unexplained = _is(
    {
        **_all(_is_number, "measured explained rest"),
        "members_unknown": _each(_is_count),
    }
)
_spread = _maybe(
    _is(
        _all(lambda v: v is not None and _is_number(v), "mean p95 max")
        | {"attribution": _is_attribution}
    )
)
_instance = _is(_all(_is_text, "profile uuid") | _all(_is_number, "memory_mb sms places"))
_layout = _is({"planned": _each(_is_text), "came": _each(_instance)})
_window = _is(_all(_is_moment, "from to"))
_gpu = _is(
    {
        "uuid": _is_text,
        "slow": _maybe(_is_text),
        "index": _maybe(_is_count),
        "model": _maybe(_is_text),
        **_all(_is_number, "memory_mb energy_j"),
        "members": _each(_is_count),
        "use": _values(_spread),
        "throttled_s": _values(_is_number),
    }
)
_extreme = _is({"uuid": _is_text, "mean": lambda v: v is not None and _is_number(v)})
_summary = _is(
    {
        **_all(_is_text, "pack_id name"),
        **_all(_maybe(_is_text), "job node"),
        "final": _is_flag,
        "gpu": _is(
            {"uuid": _maybe(_is_text), "model": _maybe(_is_text), "memory_mb": _is_number}
        ),
        "setup": _maybe(
            _is(_all(_is_text, "mode asked reason by") | {"notes": _each(_is_text)})
        ),
        "window": _maybe(lambda value: _window(value) and value["to"] >= value["from"]),
        "coverage": _maybe(_coverage),
        "gpu_use": _values(_spread),
        "throttled_s": _values(_is_number),
        "energy_j": _is_number,
        "unexplained": _is({"sm_active": _maybe(_unexplained), "energy_j": _unexplained}),
        # Summaries of 0.1.0 have no "power".
        "members": _each(lambda one: _member(one) and _power(one.get("power"))),
        "pack": _pack,
        **_all(_each(_is_text), "problems notes"),
        "made_at": _maybe(_is_moment),
        "submission": _maybe(_is_text),
        "layout": _maybe(_layout),
        "degree": _maybe(_degree),
        "open": _maybe(_open),
        "chain": _maybe(_chain),
        "gpu_set": _is_count,
        "gpu_sets": _each(_is_count),
        "number_of": _maybe(lambda value: _each(_is_count)(value) and len(value) == _PAIR),
        "gpus": _each(_gpu),
        "imbalance": _maybe(_is({"metric": _is_text, "least": _extreme, "most": _extreme})),
    },
)  # fmt: skip


# ---- The summary that a pack's end has left: where it lies, and reading it; light to load --------

SUMMARY_SCHEMA = 1


def summary_path(pack: Path) -> Path:
    """Where a pack's summary lies."""
    return Path(report_directory(pack)) / "summary.json"


def read_summary(pack: Path) -> Summary | None:
    """The summary that the newest attempt of a pack left; None where there is no final one."""
    try:
        value = read_json(summary_path(pack))
        attempt = read_attempt(pack)
    except StateError:
        return None
    if value is None or value.get("schema") != SUMMARY_SCHEMA or not fits_summary(value):
        return None
    return value if value.get("final") is True and value.get("attempt") == attempt else None


def choose_members(summary: Summary, numbers: Collection[int] | None) -> list[dict[str, Any]]:
    """The members of a summary with these numbers; all for None."""
    return [
        member for member in summary["members"] if numbers is None or member["member"] in numbers
    ]


# ---- A pack's summary for readers: the one that its end has left, else one made now --------------


def find_summary(state: StateReader, view: PackView) -> Summary:
    """The summary of a pack, with its times for people; nothing is written.

    Args:
        state: The state directory that has the pack and the usage profiles.
        view: The pack.

    Raises:
        NotFound: There is no such pack.
        StateError: It is damaged, or its samples cannot be read at all.
    """
    path = state.pack_path(view.record.pack_id)
    left = read_summary(path) if all(member.is_final for member in view.members) else None
    if left is None:
        # Making one loads twice as much as showing one.
        from slurm_colloc.report.pack_summary import build_summary

        left = build_summary(path, state.root, view)
    return add_times(left)


def add_times(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary with times for people."""
    members = [
        {
            **entry,
            "started_time": format_time(entry["started_at"]),
            "ended_time": format_time(entry["ended_at"]),
        }
        for entry in summary["members"]
    ]
    return {**summary, "made_time": format_time(summary["made_at"]), "members": members}


def format_time(at: float | None) -> str | None:
    """A moment in ISO 8601 with milliseconds, in UTC; None for None.

    Args:
        at: Seconds since the epoch.
    """
    if at is None:
        return None
    try:
        moment = dt.datetime.fromtimestamp(at, dt.UTC)
    except (OverflowError, OSError, ValueError):
        # A clock that was wrong wrote it.
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
