"""A process's side of CUDA's checkpoint (nvml/cuda_checkpoint.c): it gives its memory away."""

from __future__ import annotations

import time
from dataclasses import replace

from slurm_colloc_lab.simgpu.nvml.gpu_records import parse_pairs, render_pairs
from slurm_colloc_lab.simgpu.nvml.gpu_state import read_small_file, write_file
from slurm_colloc_lab.simgpu.training.cuda_context import Context
from slurm_colloc_lab.simgpu.training.cuda_errors import OUT_OF_MEMORY

RUNNING, LOCKED, CHECKPOINTED = range(3)
_POLL_S = 0.01
_LEADS_TO = {"lock": LOCKED, "checkpoint": CHECKPOINTED, "restore": LOCKED, "unlock": RUNNING}


class CheckpointThread:
    """What a process does for the driver.

    Args:
        context: Its context.
    """

    def __init__(self, context: Context) -> None:
        folder, pid = context.node.directory / "processes", context.process.pid
        self._context = context
        self._wanted, self._answer = folder / f".{pid}.wanted", folder / f".{pid}.checkpoint"
        self._state, self._moved_mb = RUNNING, 0
        for left in (self._wanted, self._answer):
            # Of another process with this number.
            left.unlink(missing_ok=True)

    def work(self) -> bool:
        """Do what the driver wants; True where the process was held meanwhile."""
        was_held = False
        while self._follow() or self._state != RUNNING:
            was_held = True
            time.sleep(_POLL_S)
        return was_held

    def _follow(self) -> bool:
        text = read_small_file(self._wanted)
        if text is None:
            return False
        self._wanted.unlink(missing_ok=True)
        wanted, code = parse_pairs(text), 0
        context = self._context
        with context.node.locked():
            process = context.process
            if wanted["word"] == "checkpoint":
                self._moved_mb = process.gpu_memory_mb
                context.process = replace(process, gpu_memory_mb=0)
            elif wanted["word"] == "restore" and context.find_fullest()[1] < self._moved_mb:
                code = OUT_OF_MEMORY
            elif wanted["word"] == "restore":
                context.process = replace(process, gpu_memory_mb=self._moved_mb)
            context.node.write_process(context.process)
        self._state = self._state if code else _LEADS_TO[wanted["word"]]
        answer = {"state": self._state, "code": code, "number": wanted["number"]}
        write_file(self._answer, render_pairs(answer), 0o644)
        return True
