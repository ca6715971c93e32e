"""radT's table of collocated runs, as it is, in the columns of `csub batch`; pure.

Columns: Experiment, Workload, Name, Status, Run, Devices, Collocation, File, Listeners, Params
(itu-rad/radt, examples/csv and radt/schedule/schedule.py). Rows of one experiment and workload run
together. Which GPUs they get is Slurm's to say: of Devices the number counts.
"""

from __future__ import annotations

import csv
import io
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.printable import cut
from slurm_colloc.submission.jobs.placeholders import keep_literally
from slurm_colloc.submission.jobs.value_lists import ParameterSetting

COLUMNS = (
    "Experiment", "Workload", "Name", "Status", "Run", "Devices", "Collocation", "File",
    "Listeners", "Params",
)  # fmt: skip
_TELLING = frozenset({"Experiment", "Workload", "File"})
_ALONE = frozenset({"", "-", "none", "nan"})


@dataclass(frozen=True)
class RadtWorkload:
    """Rows that run together.

    Attributes:
        title: `experiment 0, workload 2`.
        settings: The rows, in the columns of `csub batch`.
        places: Where each stands among all rows.
    """

    title: str
    settings: tuple[ParameterSetting, ...]
    places: tuple[int, ...]


def is_radt_table(settings: Sequence[ParameterSetting]) -> bool:
    """True for a table with radT's columns."""
    names = {name for setting in settings for name, _ in setting.values}
    return names >= _TELLING and names <= set(COLUMNS)


def group_workloads(
    settings: Sequence[ParameterSetting], *, given: frozenset[str], folder: str
) -> list[RadtWorkload]:
    """The workloads of radT's table, in its order.

    Args:
        settings: Its rows.
        given: Options that the call has; they stand for what the table says.
        folder: Where the table lies: its files are named from there.

    Raises:
        UsageProblem: A row lacks a file, or asks for what csub cannot do.
    """
    found: dict[tuple[str, str], list[int]] = {}
    for at, setting in enumerate(settings):
        cells = dict(setting.values)
        found.setdefault((cells.get("Experiment", ""), cells.get("Workload", "")), []).append(at)
    return [
        RadtWorkload(
            f"experiment {cut(experiment)}, workload {cut(workload)}",
            tuple(
                _translate(settings[at], [settings[p] for p in places], given, folder)
                for at in places
            ),
            tuple(places),
        )
        for (experiment, workload), places in found.items()
    ]


def _translate(
    setting: ParameterSetting,
    workload: Sequence[ParameterSetting],
    given: frozenset[str],
    folder: str,
) -> ParameterSetting:
    together = len(workload)
    cells = dict(setting.values)
    file = cells.get("File", "")
    if not file:
        raise UsageProblem(f"{setting.place}: column File is empty")
    inner, name = os.path.split(file)
    try:
        words = shlex.split(cells.get("Params", ""))
    except ValueError as error:
        raise UsageProblem(f"{setting.place}, column Params: {error}") from error
    command = shlex.join(["python", name, *words])
    pairs = {
        "command": keep_literally(f"exec {command}"),
        "job-name": cells.get("Name") or name.removesuffix(".py"),
        "chdir": os.path.normpath(os.path.join(folder, inner)),
        "gres": f"gpu:{_count_devices(cells.get('Devices', ''), setting.place)}",
        "degree": str(together),
        "pack-size": str(together),
        "start-together": str(together) if together > 1 else "",
        "share": "" if "share" in given else _choose_share(setting, workload),
    }
    if given & {"gres", "gpus", "gpus-per-node"}:
        del pairs["gres"]
    kept = tuple((n, keep_literally(v)) for n, v in pairs.items() if v and n not in given)
    return ParameterSetting(kept, setting.place)


def _count_devices(text: str, place: str) -> int:
    devices = text.replace(" ", "").split("+")
    if text in _ALONE:
        return 1
    if not all(device.isdecimal() for device in devices):
        raise UsageProblem(f"{place}, column Devices: {cut(text)!r} is not a list such as 0 or 0+1")
    return len(devices)


def _choose_share(setting: ParameterSetting, workload: Sequence[ParameterSetting]) -> str:
    """The value of --share for a row; that of a workload on MIG names the instance of each row."""
    words = [dict(row.values).get("Collocation", "").strip().lower() for row in workload]
    word = dict(setting.values).get("Collocation", "").strip().lower()
    place = f"{setting.place}, column Collocation"
    if word in _ALONE:
        return "timeslice" if len(workload) > 1 else ""
    if word == "mps":
        return word
    if "g" not in word:
        raise UsageProblem(f"{place}: {cut(word)!r} is neither -, mps nor a MIG profile")
    if not all("g" in other for other in words):
        raise UsageProblem(
            f"{place}: {cut(word)} is a MIG device, and other rows of its workload have none",
            hint="a GPU is divided for all of its jobs, or for none",
        )
    return f"mig={'+'.join(words)}"


def render_status(settings: Sequence[ParameterSetting], ends: Mapping[int, tuple[str, str]]) -> str:
    """RadT's table with Status and Run filled in.

    Args:
        settings: Its rows.
        ends: The status and the member of rows, by their places.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for at, setting in enumerate(settings):
        cells = dict(setting.values)
        if at in ends:
            cells["Status"], cells["Run"] = ends[at]
        writer.writerow([cells.get(name, "") for name in COLUMNS])
    return file.getvalue()
