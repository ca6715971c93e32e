"""What was prepared on the GPU for an attempt of a pack, written to its setup.json.

Loads nothing of the node's side: packs without MPS have a setup, too.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc.errors import StateError
from slurm_colloc.runtime.guarded_steps import Journal
from slurm_colloc.store.pack_directory import Setup, SetupInstance, write_setup

if TYPE_CHECKING:
    from slurm_colloc.host.keeper.prepared_daemon import PreparedGpu
    from slurm_colloc.host.mps.mps_state import StopReport
    from slurm_colloc.runtime.discover_gpus import GpuFinding
    from slurm_colloc.runtime.pack_instances import PackInstances


class SetupRecord:
    """Keeps the setup of an attempt.

    Args:
        pack: The pack's directory.
        setup: What is known at the start.
        journal: The pack's log.
    """

    def __init__(self, pack: Path, setup: Setup, journal: Journal) -> None:
        self._pack = pack
        self._journal = journal
        self.setup = setup

    def note_gpu(self, finding: GpuFinding, prepared: tuple[str, ...]) -> None:
        """What NVML says of the pack's GPU.

        Args:
            finding: What it says.
            prepared: The GPUs for which root has prepared a daemon, by UUID.
        """
        gpu = finding.gpu
        self._change(
            gpus=finding.uuids or prepared or self.setup.gpus,
            gpu_memory_mb=gpu.gpu_memory_total_mb if gpu else None,
            gpu_name=gpu.name if gpu else None,
            client_cap=finding.client_cap,
            notes=finding.notes,
        )

    def note_instances(
        self, gpu: PreparedGpu, instances: PackInstances, *, can_change: bool
    ) -> None:
        """The MIG instances that stand on the GPU.

        Args:
            gpu: The GPU with its instances.
            instances: How many members share each.
            can_change: They can be changed while the pack runs.
        """
        whole = max((profile.memory_mb for profile in gpu.profiles), default=None)
        self._change(
            by="prolog",
            gpus=(gpu.uuid,),
            gpu_name=gpu.name,
            gpu_memory_mb=whole,
            instances=tuple(
                SetupInstance(
                    one.uuid,
                    one.profile,
                    one.gpu_instance,
                    one.memory_mb,
                    one.sms,
                    instances.count_places(one.uuid),
                )
                for one in gpu.instances
            ),
            can_change=can_change,
        )

    def note_whole_instance(self, gpu: PreparedGpu) -> None:
        """The GPU is one MIG instance, which members share otherwise."""
        (whole, *_) = gpu.instances
        self._change(gpus=(whole.uuid,), gpu_name=gpu.name, gpu_memory_mb=whole.memory_mb)

    def note_control(self, by: str, control_ms: float, restarts: int) -> None:
        """An MPS daemon answers."""
        self._change(by=by, control_ms=control_ms, stop_ms=None, restarts=restarts)

    def note_stopped(self, report: StopReport) -> None:
        """The daemon has been ended."""
        self._journal.write(
            "mps_stopped",
            ms=report.elapsed_ms,
            forced=report.forced,
            unkillable=report.unkillable,
            left=report.left,
            gpu_processes=report.gpu_processes,
            notes=report.notes,
        )
        if report.unkillable:
            self.add_notes(f"processes that cannot be killed: {_list(report.unkillable)}")
        self.add_notes(*(f"left behind: {text}" for text in report.left))
        if report.gpu_processes:
            self.add_notes(f"still on the GPU: processes {_list(report.gpu_processes)}")
        self.write(stop_ms=report.elapsed_ms)

    def add_notes(self, *notes: str) -> None:
        """What else is worth knowing, a sentence each; none is kept twice."""
        self._change(notes=tuple(dict.fromkeys((*self.setup.notes, *notes))))

    def write(self, **changes: object) -> None:
        """Write it down as it is now, with these fields changed."""
        self._change(**changes)
        with contextlib.suppress(StateError):
            write_setup(self._pack, self.setup)

    def _change(self, **changes: object) -> None:
        self.setup = dataclasses.replace(self.setup, **changes)  # type: ignore[arg-type]


def _list(pids: Iterable[int]) -> str:
    return ", ".join(map(str, pids))
