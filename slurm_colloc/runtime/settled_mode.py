"""The sharing mode that holds in a pack: settled, fallen back to, or refused; and who is told.

Also: what was prepared on the GPU for an attempt of a pack, written to its setup.json.

Also: how patient a runner is with the GPU, its driver and its MPS daemon.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from slurm_colloc.errors import StateError
from slurm_colloc.model.job import ShareRequest
from slurm_colloc.model.late_definitions import dataclass, replace
from slurm_colloc.model.plan import SharingMode
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.store.pack_directory import Setup, SetupInstance, write_setup

if TYPE_CHECKING:
    from slurm_colloc.host.keeper.prepared_daemon import PreparedGpu
    from slurm_colloc.host.mps.mps_state import StopReport
    from slurm_colloc.runtime.discover_gpus import GpuFinding
    from slurm_colloc.runtime.pack_instances import PackInstances


# ----
# The sharing mode that holds in a pack: settled, fallen back to, or refused; and who is told.

ONE_PROCESS = "EXCLUSIVE_PROCESS"

PREPARED = (SharingMode.MPS, SharingMode.MIG)
"""What needs something on the node, and falls back to the next where it cannot be had."""


@dataclass(eq=False, kw_only=True)
class SettledMode:
    """Keeps the mode, and writes down each change.

    Attributes:
        pack: The attempt of the pack.
        preparation: The attempt's setup.
        request: What `--share` asked for.
        mode: The mode that holds from the start; None while it is being prepared.
    """

    pack: PackContext
    preparation: SetupRecord
    request: ShareRequest
    mode: SharingMode | None

    def __post_init__(self) -> None:
        self._has_told = False
        self.refusal = ""
        """Why nothing may start here."""
        self.takes_one_process = False
        """The GPU lets one process in at a time."""
        self.lacks_mig = ""
        """Why there are no MIG instances, where they were asked for."""

    def settle(self, mode: SharingMode, reason: str) -> None:
        """This mode holds."""
        if not self.refusal:
            self.mode = mode
            takes_one = self.takes_one_process and mode is SharingMode.TIMESLICE
            self.preparation.write(mode=mode.value, reason=reason, takes_one=takes_one)
            self.pack.journal.write("sharing", mode=mode.value, reason=reason)

    def settle_mps(self, active_ms: float | None) -> None:
        """MPS holds: its server takes clients."""
        if self.refusal:
            return
        self.mode = SharingMode.MPS
        self.preparation.write(
            mode=SharingMode.MPS.value,
            reason=self.lacks_mig or "the node has MPS, and its GPU takes it",
            active_ms=active_ms,
        )
        if self.lacks_mig and not self._has_told:
            self._has_told = True
            self._tell(f"members share the GPU by MPS: {self.lacks_mig}")
        self.pack.journal.write(
            "sharing",
            mode=SharingMode.MPS.value,
            ms=self.preparation.setup.control_ms,
            active_ms=active_ms,
        )

    def settle_one_at_a_time(self, reason: str) -> None:
        """Members run one after the other: MPS does not hold them together."""
        self.takes_one_process = True
        self.preparation.add_notes("without MIG instances one member at a time")
        self.settle(SharingMode.TIMESLICE, reason)
        self._tell(f"members run one at a time: {reason}")

    def fall_back(self, reason: str) -> None:
        """Go on without what was asked for, or not at all where that is not allowed."""
        if self.refusal:
            return
        if self.request.strict:
            self.refuse(f"{self.request} was asked for, and {reason}", reason)
            return
        if self.takes_one_process:
            self.preparation.add_notes(
                f"the GPU is in compute mode {ONE_PROCESS}: without MPS one member at a time"
            )
        reason = "; ".join(filter(None, (self.lacks_mig, reason)))
        self.settle(SharingMode.TIMESLICE, reason)
        if self.request.mode in PREPARED:
            self._tell(f"members share the GPU by time slices: {reason}")

    def refuse(self, refusal: str, reason: str) -> None:
        """Nothing starts here any more.

        Args:
            refusal: Why, for the members.
            reason: Why, for the setup.
        """
        self.refusal = refusal
        self.mode = None
        self.preparation.write(mode="", reason=reason)
        self.pack.journal.write("no_sharing", asked=str(self.request), reason=reason)

    @staticmethod
    def _tell(text: str) -> None:
        sys.stderr.write(f"csub: {text}\n")
        sys.stderr.flush()


# ---- How patient a runner is with the GPU, its driver and its MPS daemon -------------------------


@dataclass(frozen=True)
class GpuPatience:
    """Times in seconds, all at once, so that a test can shorten them.

    Attributes:
        nvml_s: How long NVML may take at the start: a GPU without persistence mode takes seconds.
        fault_grace_s: How long members that a fault has hit may take to end by themselves: their
            contexts are dead, and until they are gone the server takes no new client (CUDA MPS
            manual, "Error containment").
        mend_s: How long a server may take to mend once they are gone; about 1 s on an H200.
        stop_s: How long the end of the daemon is waited for.
        status_s: How long the daemon's answer is waited for, when a member has ended.
        gpu_looks_s: When NVML is asked for a member that is not known to be a client, after its
            start: it may use the GPU without MPS.
        gpu_look_every_s: How often NVML is asked at most.
        bases: Where the daemon's directory may lie; empty for the usual places.
    """

    nvml_s: float = 20.0
    fault_grace_s: float = 60.0
    mend_s: float = 5.0
    stop_s: float = 20.0
    status_s: float = 1.0
    gpu_looks_s: tuple[float, ...] = (15.0, 60.0)
    gpu_look_every_s: float = 60.0
    bases: tuple[str, ...] = ()


# ---- What was prepared on the GPU for an attempt of a pack, written to its setup.json ------------
#
# Loads nothing of the node's side: packs without MPS have a setup, too.


@dataclass(eq=False, kw_only=True)
class SetupRecord:
    """Keeps the setup of an attempt.

    Attributes:
        pack: The attempt of the pack.
        setup: What is known at the start.
    """

    pack: PackContext
    setup: Setup

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

    def note_instances(self, instances: PackInstances) -> None:
        """The MIG instances on the GPU, and how many members share each."""
        gpu = instances.gpu
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
                    instances.seats.count_places(one.uuid),
                )
                for one in gpu.instances
            ),
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
        self.pack.journal.write(
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
            write_setup(self.pack.path, self.setup)

    def _change(self, **changes: object) -> None:
        self.setup = replace(self.setup, **changes)  # type: ignore[arg-type]


def _list(pids: Iterable[int]) -> str:
    return ", ".join(map(str, pids))
