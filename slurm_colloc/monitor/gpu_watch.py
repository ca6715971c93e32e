"""Asks for the GPUs' samples in a thread of its own: a driver that hangs stops nothing else.

This thread makes every call to NVML, so two never run at the same time. A thread that hangs inside
the driver cannot be ended by anybody, and a process that has one cannot be collected either; the
monitor's other work and the end of its files do not need it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

from slurm_colloc.monitor.nvml_reading import NvmlReader, NvmlSample

PATIENCE_S = 0.4
"""How long a tick waits for the driver: process lists of many clients take tens of ms."""


class GpuWatch:
    """The main thread's side.

    Args:
        reader: Used by the thread alone from now on.
    """

    def __init__(self, reader: NvmlReader) -> None:
        self._reader = reader
        self._questions: queue.SimpleQueue[tuple[tuple[str, ...], bool] | None]
        self._questions = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[NvmlSample] = queue.SimpleQueue()
        self._asked_at: float | None = None
        self._has_answered = False
        self._is_current = False
        self._thread = threading.Thread(target=self._serve, name="nvml", daemon=True)
        self._thread.start()

    def ask(self, uuids: Sequence[str], *, with_processes: bool) -> None:
        """Begin to read; does not wait."""
        if self._asked_at is not None:
            self._take_answer(0.0)
        # An answer to an older question, which came only now, is of no use.
        self._is_current = self._asked_at is None
        if self._is_current:
            self._asked_at = time.monotonic()
            self._questions.put((tuple(uuids), with_processes))

    def collect(self, patience_s: float = PATIENCE_S) -> NvmlSample:
        """What was asked for at last; says so where the driver has not answered yet."""
        # Who has hung before is not waited for at every tick.
        answer = self._take_answer(patience_s if self._is_current else 0.0)
        if answer is not None and self._is_current:
            return answer
        if not self._has_answered:
            return NvmlSample(problems={"nvml": "NVML has not answered yet"})
        return NvmlSample(problems={"nvml": "NVML does not answer"})

    def close(self, patience_s: float = PATIENCE_S) -> None:
        """Give NVML back, unless it hangs."""
        self._questions.put(None)
        self._thread.join(patience_s)

    def _take_answer(self, patience_s: float) -> NvmlSample | None:
        try:
            answer = self._answers.get(block=patience_s > 0, timeout=patience_s or None)
        except queue.Empty:
            return None
        self._asked_at = None
        self._has_answered = True
        return answer

    def _serve(self) -> None:
        self._reader.open()
        while True:
            question = self._questions.get()
            if question is None:
                self._reader.close()
                return
            uuids, with_processes = question
            try:
                answer = self._reader.read(uuids, with_processes=with_processes)
            except Exception as error:  # noqa: BLE001 - members are sampled whatever is wrong here
                answer = NvmlSample(problems={"nvml": f"reading NVML failed: {error!r}"})
            self._answers.put(answer)
