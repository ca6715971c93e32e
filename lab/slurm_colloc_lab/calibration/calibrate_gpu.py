"""`csub calibrate`: measures how trainings share this GPU, and fits the model that plans use."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slurm_colloc.cli.subcommands import Json
from slurm_colloc.errors import CollocError, UsageProblem
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.session.session import note, say

if TYPE_CHECKING:
    from slurm_colloc_lab.calibration.calibrated_gpu import CalibrationPlace

_MINUTES_MOST = 120.0
_NVML_S = 60.0


def _parse_path(text: str) -> Path:
    """A path; an empty word would be the directory here."""
    if not text:
        raise typer.BadParameter("it names no file")
    return Path(text)


def calibrate(  # noqa: PLR0917 - typer makes options of them
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[ROWS.csv]...", help="With --fit: the rows.", show_default=False),
    ] = None,
    gpu: Annotated[
        str, typer.Option("--gpu", metavar="UUID|INDEX", help="The GPU, if there are several.")
    ] = "",
    minutes: Annotated[
        float, typer.Option("--minutes", help="How long to measure; less time means less accuracy.")
    ] = 8.0,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            parser=_parse_path,
            metavar="FILE|DIR",
            help="Write the calibration here, for example for a site, and not into your state "
            "directory; in a directory under the name that csub looks for.",
        ),
    ] = None,
    raw: Annotated[
        Path | None,
        typer.Option(
            "--raw",
            parser=_parse_path,
            metavar="FILE.csv",
            help="Append the rows to this table, and fit all its rows.",
        ),
    ] = None,
    fit: Annotated[
        bool,
        typer.Option("--fit", help="Measure nothing; fit rows from files. Writes only with --out."),
    ] = False,
    shared: Annotated[
        bool, typer.Option("--shared", help="Measure even if someone else is using the GPU.")
    ] = False,
    idle_power: Annotated[
        float | None,
        typer.Option(
            "--idle-power",
            metavar="WATTS",
            help="With --fit: power of the idle GPU, if no row has it.",
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", help="Seed for choosing which trainings run together.")
    ] = 1,
    scale: Annotated[str, typer.Option("--scale", hidden=True)] = "full",
    as_json: Json = False,
) -> None:
    """Measure how trainings share this GPU, for csub's plans on GPUs of its model.

    Run it where the GPU is: srun --gres=gpu:1 --cpus-per-task=16 --mem=100G csub calibrate
    """
    from slurm_colloc.store.calibrations import check_idle_power
    from slurm_colloc_lab.calibration.calibrated_gpu import check_packages, check_target

    if files and not fit:
        raise UsageProblem("rows are read only with --fit")
    if fit and not files:
        raise UsageProblem("--fit needs files of rows", hint="csub calibrate --fit rows.csv")
    if fit and raw is not None:
        raise UsageProblem("--raw takes measured rows, and with --fit nothing is measured")
    if idle_power is not None and not fit:
        raise UsageProblem("--idle-power is read only with --fit")
    if not 0 < minutes <= _MINUTES_MOST:
        raise UsageProblem(f"--minutes={minutes:g} must be above 0 and at most {_MINUTES_MOST:g}")
    if scale not in ("full", "tiny"):
        raise UsageProblem(f"--scale={escape_controls(scale)} must be full or tiny")
    if idle_power is not None:
        check_idle_power(idle_power)
    if out is not None:
        check_target(out)
    if fit:
        check_packages("numpy", "scipy")
        _fit(files or [], out=out, idle_power_w=idle_power, as_json=as_json)
        return
    check_packages("torch", "numpy", "scipy")
    place = _find_place(gpu, shared=shared)
    own = None if out is not None else _choose_target(place)
    previous = signal.signal(signal.SIGTERM, _end)
    try:
        with tempfile.TemporaryDirectory(prefix="csub-calibrate-") as folder:
            rows = raw if raw is not None else Path(folder) / "rows.csv"
            _measure(place, rows, minutes=minutes, scale=scale, seed=seed)
            _fit([rows], out=out, own=own, raw=raw, idle_power_w=idle_power, as_json=as_json)
    finally:
        signal.signal(signal.SIGTERM, previous)


def run_calibrate(argv: Sequence[str]) -> int:
    """`csub calibrate`; the exit status. Problems are raised."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(calibrate)
    status = app(args=list(argv), prog_name="csub calibrate", standalone_mode=False)
    return status if isinstance(status, int) else 0


def _find_place(wanted: str, *, shared: bool) -> CalibrationPlace:
    from slurm_colloc.host.nvml.nvml_query import NvmlAnswer, probe_gpus
    from slurm_colloc_lab.calibration.calibrated_gpu import CPU, choose_place, list_cores

    answer = NvmlAnswer() if wanted == CPU else probe_gpus(_NVML_S)
    return choose_place(answer, wanted, os.environ, list_cores(), shared=shared)


def _choose_target(place: CalibrationPlace) -> Path | None:
    """The user's own calibration of the GPU's model; None where there is no GPU."""
    from slurm_colloc.settings import load_settings
    from slurm_colloc.store.all_packs import open_own_state
    from slurm_colloc.store.calibrations import calibration_path, user_folder
    from slurm_colloc_lab.calibration.calibrated_gpu import check_target

    if place.gpu is None or not place.gpu.name:
        return None
    state = open_own_state(load_settings().state_path)
    target = calibration_path(user_folder(state.root), place.gpu.name)
    check_target(target)
    return target


def _measure(place: CalibrationPlace, rows: Path, *, minutes: float, scale: str, seed: int) -> None:
    from slurm_colloc_lab.calibration.measure_cells import check_table, measure

    check_table(rows, place.gpu_model)
    where = place.gpu.name or place.gpu.uuid if place.gpu is not None else "the CPU"
    note(f"measuring {where} with {len(place.cores)} cores for {minutes:g} minutes at most")
    for text in place.notes:
        note(text)
    cells = measure(place, rows, minutes=minutes, say=note, scale=scale, seed=seed)
    note(f"{cells} cells measured; fitting")


def _fit(
    files: list[Path],
    *,
    out: Path | None,
    own: Path | None = None,
    raw: Path | None = None,
    idle_power_w: float | None,
    as_json: bool,
) -> None:
    """Fit rows, and write the calibration.

    Args:
        files: The rows.
        out: Where the user wants it; its folder is made for all to read.
        own: Where it goes otherwise, among the user's own; None for nowhere.
        raw: Where rows that were measured are kept.
        idle_power_w: Of the GPU, where no row tells.
        as_json: Tell it as JSON.
    """
    from slurm_colloc.store.calibrations import calibration_path, write_calibration
    from slurm_colloc_lab.calibration.calibrated_gpu import choose_file, make_folder
    from slurm_colloc_lab.calibration.calibration_words import build_calibrate_json, render_fit
    from slurm_colloc_lab.calibration.fit_model import fit as fit_all
    from slurm_colloc_lab.calibration.measured_packs import build_measurements, read_rows
    from slurm_colloc_lab.calibration.model_error import compute_noise, evaluate

    measured = build_measurements(read_rows(files))
    if measured.cells_left_out:
        note(f"{measured.cells_left_out} cells are incomplete or make no sense, and were left out")
    if measured.idle_power_w is None:
        measured = dataclasses.replace(measured, idle_power_w=idle_power_w)
    if (out or own) is not None and not measured.gpu_model:
        raise UsageProblem("no row names its GPU model, so nothing can be written")
    fitted = fit_all(measured)
    evaluated, noise = evaluate(measured, fitted), compute_noise(measured)
    target = own if out is None else choose_file(out, measured.gpu_model)
    problem = None
    if target is not None:
        try:
            if out is not None:
                make_folder(target)
            write_calibration(target, fitted.calibration)
        except CollocError as found:
            # What was measured is told all the same.
            target, problem = None, found
    if as_json:
        value: dict[str, Any] = build_calibrate_json(
            fitted,
            evaluated,
            noise,
            written=None if target is None else str(target),
            raw=str(raw) if raw is not None else None,
            cells_left_out=measured.cells_left_out,
        )
        say(json.dumps(value, indent=1))
    else:
        say(render_fit(fitted, evaluated, noise))
    sys.stdout.flush()
    if problem is not None:
        raise problem
    if target is not None:
        named = calibration_path(target.parent, measured.gpu_model).name
        lost = "" if target.name == named else f"; csub looks for {named}, and finds no other name"
        note(f"written: {escape_controls(str(target))}{lost}")


def _end(number: int, _: Any) -> None:
    # Once is enough: what follows is the way out, on which the MPS daemon is ended.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note("ended before the measurement was done; nothing was written")
    raise SystemExit(128 + number)
