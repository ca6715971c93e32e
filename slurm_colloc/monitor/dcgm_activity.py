"""Activity of GPUs as the site's DCGM tells it, by `dcgmi` as a child process.

For GPUs without GPM (Ampere and before), where the site runs DCGM's host engine; none is started.
A thread waits for what dcgmi prints, so that one that hangs stops nothing else. Where dcgmi is
missing or fails, that is said once, and the rest is measured as ever.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence

from slurm_colloc.monitor.capabilities import ERROR, UNSUPPORTED, Capabilities
from slurm_colloc.monitor.dcgm_output import FIELDS, ActivityTable, parse_discovery

PROGRAM = "dcgmi"
PERIOD_MS = 1000
STALE_S = 3.5
"""What was printed longer ago is not of now."""
_DISCOVERY_S = 10.0
_END_S = 1.0
_LINE_MOST = 200


class DcgmActivity:
    """Follows the activity of a pack's GPUs.

    Args:
        capabilities: Where what can be read is written down.
        program: The program to ask.
    """

    def __init__(self, capabilities: Capabilities, program: str = PROGRAM) -> None:
        self._capabilities = capabilities
        self._program = program
        self._uuids: tuple[str, ...] = ()
        self._process: subprocess.Popen[str] | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._is_over = False
        self._newest: dict[str, tuple[float, dict[str, float | None]]] = {}
        self._problem = ""
        self._told = ""

    def follow(self, uuids: Sequence[str]) -> None:
        """Say whose activity is wanted; the first that are named stay."""
        if self._uuids or not uuids or self._is_over:
            return
        self._uuids = tuple(uuids)
        self._thread = threading.Thread(target=self._serve, name="dcgm", daemon=True)
        self._thread.start()

    def read(self, uuid: str) -> dict[str, float | None]:
        """The newest activity of a GPU by metric; empty where there is none of now."""
        at, found = self._newest.get(uuid, (float("-inf"), {}))
        if time.monotonic() - at > STALE_S:
            return {}
        for number, (_, name) in FIELDS.items():
            if found.get(name) is not None:
                self._capabilities.prefer(name, f"dcgm:{number}")
            elif name in found:
                self._capabilities.note(name, f"dcgm:{number}", UNSUPPORTED, "DCGM says N/A")
        return {name: value for name, value in found.items() if value is not None}

    def take_problem(self) -> str:
        """Why DCGM tells nothing, once; empty where it does, and where that was said."""
        problem = self._problem
        if problem == self._told:
            return ""
        self._told = problem
        for number, (_, name) in FIELDS.items():
            self._capabilities.note(name, f"dcgm:{number}", ERROR, problem)
        return problem

    def close(self) -> None:
        """End the child."""
        with self._lock:
            self._is_over = True
            process = self._process
        if process is not None:
            # Signals are blocked in the monitor, and so in its children: nothing else ends it.
            process.kill()
        if self._thread is not None:
            self._thread.join(_END_S)

    # -- the thread -----------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            reason = self._run()
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            reason = str(error)
        if not self._is_over:
            self._problem = f"{self._program}: {reason}"

    def _run(self) -> str:
        """Read until the end; why it ended."""
        words = [self._program, "discovery", "-l"]
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=_DISCOVERY_S, check=False,
        )  # fmt: skip
        numbers = parse_discovery(done.stdout)
        by_number = {numbers[uuid]: uuid for uuid in self._uuids if uuid in numbers}
        if not by_number:
            said = _first_line(done.stdout) or f"it ended with status {done.returncode}"
            return said if done.returncode else "it does not know the pack's GPU"
        process = self._start(by_number)
        if process is None or process.stdout is None:
            return ""
        table, other = ActivityTable(), ""
        with process:
            for line in process.stdout:
                row = table.read(line)
                if row is not None and row[0] in by_number:
                    self._newest[by_number[row[0]]] = (time.monotonic(), row[1])
                elif row is None and not line.lstrip().startswith(("#", "ID", "Id")):
                    other = _first_line(line) or other
        return other or f"it ended with status {process.returncode}"

    def _start(self, by_number: dict[int, str]) -> subprocess.Popen[str] | None:
        words = [
            *(self._program, "dmon", "-e", ",".join(map(str, FIELDS))),
            *("-d", str(PERIOD_MS), "-i", ",".join(map(str, sorted(by_number)))),
        ]
        with self._lock:
            if self._is_over:
                return None
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, errors="replace", bufsize=1,
            )  # fmt: skip
            return self._process


def _first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:_LINE_MOST] if lines else ""
