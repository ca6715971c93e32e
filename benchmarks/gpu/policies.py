"""The same mix of jobs under csub and under the rules of others, on one real GPU.

As a program: `python -m benchmarks.gpu.policies --gpu 0 --cores 0-15 --csv OUT.csv --json OUT.json`
measures; `python -m benchmarks.gpu.policies --merge A.csv B.csv` puts what several calls have
measured into one table. The rows of calls with the same seed and the same jobs belong together.

Every kind of training is measured alone first, and that is what is known of each job: what csub
would know after a first run. The packs of each rule run one after the other, as there is one GPU,
and the rules take turns, as hosts are fast and slow for minutes. A job is a fixed number of steps,
so its slowdown is the time that it took over the time that the same steps take alone. Processes
are started, built and warmed up before the work of a pack begins; that time is reported apart, as
it is of a kind for all rules.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.mix import MAX_SLOWDOWN, WEIGHTS, Alone, Mix, draw_mix
from benchmarks.gpu.mix_packs import RULES, build_rows, parse_rules, prepare
from benchmarks.gpu.mix_readings import find_gpu
from benchmarks.gpu.mix_running import MixGpu, RanMember, RanPack
from benchmarks.gpu.mix_table import COLUMNS, find_missing, render_table
from benchmarks.gpu.mix_turns import RuleRun, choose_runs, estimate_s, order_packs
from benchmarks.gpu.rules import Rule
from slurm_colloc.errors import CollocError, UsageProblem
from slurm_colloc.model.usage_profile import Calibration, Load
from slurm_colloc.store.calibrations import (
    SHIPPED,
    calibration_path,
    read_calibration,
    shipped_folder,
)
from slurm_colloc_lab.calibration.calibrated_gpu import CPU
from slurm_colloc_lab.calibration.workloads import FULL, TINY

USUAL_S = {FULL: 8.0, TINY: 0.3}
INVENTED = Alone(1.0, 500.0, Load(engine=0.4, sm=0.1, dram=0.05, power_w=50.0))
"""What stands for the readings of a GPU on a CPU, so that all of this can be tried there."""
_RESERVE_S = 6.0


def parse_cores(text: str) -> tuple[int, ...]:
    """Read `0-7,16`.

    Raises:
        ValueError: It is no list of cores.
    """
    cores: list[int] = []
    for item in text.split(","):
        first, dash, last = item.partition("-")
        cores += range(int(first), int(last if dash else first) + 1)
    return tuple(dict.fromkeys(cores))


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.policies", description=__doc__)
    parser.add_argument("--merge", type=Path, nargs="+", help="CSV files to make one table of")
    parser.add_argument("--gpu", default="0", help="UUID or index of NVML")
    parser.add_argument("--device", choices=("cuda", CPU), default="cuda")
    parser.add_argument("--cores", type=parse_cores, default="0-15", help="such as 0-15")
    parser.add_argument("--rules", type=parse_rules, default=",".join(Rule), help=", ".join(RULES))
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--usual", type=float, help="median length of a job in seconds")
    parser.add_argument("--mix", choices=tuple(WEIGHTS), default="small")
    parser.add_argument("--stretch", type=float, default=1.0, help="of lengths, for planning")
    parser.add_argument("--bound", type=float, default=MAX_SLOWDOWN, help="on slowdowns")
    parser.add_argument("--scale", choices=(FULL, TINY), default=FULL)
    parser.add_argument("--seconds", type=float, default=570.0, help="for all of it")
    parser.add_argument("--calibration", type=Path, help="a file; else the one shipped with csub")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(argv)


class Comparison:
    """One call: a mix on a GPU, and the rules that are measured on it.

    Args:
        arguments: The command line.
        deadline: When to have ended, in monotonic seconds.
    """

    def __init__(self, arguments: argparse.Namespace, deadline: float) -> None:
        self._arguments = arguments
        self._deadline = deadline
        # Two calls on the GPUs of one machine begin in the same second.
        self._run = f"{socket.gethostname()}-{time.time():.0f}-{os.getpid()}"
        self._rounds: Counter[str] = Counter()
        self._results: dict[str, Any] = {"run": self._run, "rules": [], "said": []}
        path = arguments.calibration or calibration_path(shipped_folder(), SHIPPED)
        self._calibration: Calibration = read_calibration(path)
        gpu = find_gpu(arguments)
        self._uuid, self._capacity = gpu.uuid, gpu.capacity
        self._model = gpu.model if gpu.uuid else self._calibration.gpu_model
        if gpu.uuid is not None:
            self._results["driver"] = gpu.driver

    def measure(self) -> int:
        """Measure all rules, as far as time allows; how many jobs were measured."""
        arguments = self._arguments
        usual_s = arguments.usual or USUAL_S[arguments.scale]
        jobs = draw_mix(arguments.jobs, arguments.seed, usual_s, arguments.mix)
        kinds = sorted({job.kind for job in jobs})
        with MixGpu(self._uuid, arguments.cores, scale=arguments.scale, say=self._say) as gpu:
            alone = gpu.measure_alone(kinds, self._calibration.idle_power_w)
            if self._uuid is None:
                self._say("without a GPU, loads are invented and MPS is left out")
                alone = {
                    kind: Alone(found.steps_per_s, INVENTED.gpu_memory_mb, INVENTED.load)
                    for kind, found in alone.items()
                }
            mix = Mix(
                jobs,
                alone,
                self._calibration,
                self._capacity,
                self._model,
                arguments.stretch,
                arguments.bound,
            )
            self._describe(mix)
            return self._measure_all(gpu, mix, self._prepare_all(mix))

    def _describe(self, mix: Mix) -> None:
        arguments = vars(self._arguments)
        self._results["arguments"] = {key: str(value) for key, value in arguments.items()}
        self._results["gpu"] = {"uuid": self._uuid, "model": self._model}
        self._results["capacity"] = vars(self._capacity)
        self._results["jobs"] = [
            {**vars(job), "alone_s": mix.get_alone_s(job.number)} for job in mix.jobs
        ]
        self._results["alone"] = {
            kind: {**vars(found), "load": vars(found.load) if found.load else None}
            for kind, found in mix.alone.items()
        }
        for kind, found in mix.alone.items():
            if found.load is None:
                self._say(f"{kind}: what it takes of the GPU could not be read")

    def _prepare_all(self, mix: Mix) -> list[RuleRun]:
        """Plan by every rule, as many as there is time for."""
        runs = []
        for rule in self._arguments.rules:
            self._rounds[rule] += 1
            before = time.monotonic()
            told, packs = prepare(mix, rule)
            planning_s = time.monotonic() - before
            run = RuleRun(rule, self._rounds[rule], told, tuple(packs), planning_s)
            runs.append(run)
            self._say(
                f"{run.name}: {told.packs} packs, widest {told.widest}, predicted "
                f"{told.makespan_s:.0f} s, {run.expected_s:.0f} s with all processes"
            )
        chosen = choose_runs(runs, self._deadline - _RESERVE_S - time.monotonic())
        for run in runs[len(chosen) :]:
            self._say(f"{run.name}: there is no time for it")
        return chosen

    def _measure_all(self, gpu: MixGpu, mix: Mix, runs: Sequence[RuleRun]) -> int:
        """Run the packs of all rules by turns; how many jobs were measured."""
        entries: list[dict[str, Any]] = [
            {
                "rule": run.rule,
                "round": run.round,
                "planning_s": run.planning_s,
                "predicted": vars(run.told),
                "packs": [],
            }
            for run in runs
        ]
        self._results["rules"] = entries
        begun, total = time.monotonic(), 0
        turns = order_packs(runs)
        for turn, (place, number) in enumerate(turns):
            run = runs[place]
            pack = run.packs[number]
            left_s = self._deadline - _RESERVE_S - time.monotonic()
            if estimate_s(pack) > left_s:
                self._say(f"the time is over, {len(turns) - turn} packs are missing")
                break
            try:
                ran = gpu.run_pack(pack.members, pack.mode, left_s, pack.choose)
            except CollocError as error:
                failed = RanMember(None, None, str(error))
                ran = RanPack((failed,) * len(pack.members), 0.0, 0.0, None, None)
            rows = build_rows(mix, pack, ran, begun)
            common = {"run": self._run, "round": run.round, "rule": run.rule, "pack": number}
            write_rows(self._arguments.csv, [{**common, **row} for row in rows])
            entries[place]["packs"].append({"reasons": pack.reasons, "rows": rows})
            for row in rows:
                if row["problem"]:
                    text = f"{row['kind']} failed in pack {number}: {row['problem']}"
                    self._say(f"{run.name}: {text}")
            total += len(rows)
            self._write()
        self._say(f"{total} jobs in {time.monotonic() - begun:.0f} s")
        return total

    def _write(self) -> None:
        if self._arguments.json is not None:
            self._arguments.json.write_text(json.dumps(self._results, indent=1) + "\n")

    def _say(self, text: str) -> None:
        self._results["said"].append(text)
        say(text)
        self._write()


def write_rows(path: Path | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Append rows to a CSV file, so that they outlive whatever comes after."""
    if path is None:
        return
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if file.tell() == 0:
            writer.writeheader()
        writer.writerows([{name: render(row[name]) for name in COLUMNS} for row in rows])


def render(value: object) -> str:
    """A value of a row; what is unknown is empty."""
    if value is None:
        return ""
    return f"{value:.8g}" if isinstance(value, float) else str(value)


def read_all(paths: Sequence[Path]) -> list[dict[str, str]]:
    """The rows of several calls.

    Raises:
        UsageProblem: A file cannot be read, or they are of different mixes.
    """
    rows: list[dict[str, str]] = []
    for path in paths:
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows += csv.DictReader(file)
        except OSError as error:
            raise UsageProblem(f"cannot read {path}: {error.strerror}") from error
    kinds = {(row["job"], row["kind"]) for row in rows}
    if len(kinds) > len({job for job, _ in kinds}):
        raise UsageProblem("the rows are of different mixes")
    return rows


def say(text: str) -> None:
    """Say it at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure a mix, or merge what was measured.

    Returns:
        0, or 1 where nothing could be measured.
    """
    started = time.monotonic()
    arguments = parse_arguments(argv)
    paths = arguments.merge
    if not paths:
        signal.signal(signal.SIGTERM, end_by_signal)
        try:
            total = Comparison(arguments, started + arguments.seconds).measure()
        except CollocError as error:
            say(str(error))
            return 1
        if not total or arguments.csv is None:
            return int(not total)
        paths = [arguments.csv]
    try:
        rows = read_all(paths)
    except UsageProblem as problem:
        say(problem.message)
        return 1
    say(render_table(rows, arguments.jobs))
    rules = dict.fromkeys(map(str, arguments.rules))
    for text in find_missing(rows, list(rules), arguments.jobs):
        say(f"missing: {text}")
    return 0


def end_by_signal(number: int, _: Any) -> None:
    """End as a signal asks, with all that is open closed on the way out."""
    # Once is enough: what follows is the way out.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
