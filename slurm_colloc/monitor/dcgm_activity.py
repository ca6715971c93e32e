"""Activity of GPUs as the site's DCGM tells it, by `dcgmi` as a child process.

Also: what `dcgmi discovery -l` and `dcgmi dmon` print.

For GPUs without GPM (Ampere and before), where the site runs DCGM's host engine; none is started.
A thread waits for what dcgmi prints, so that one that hangs stops nothing else. Where dcgmi is
missing or fails, that is said once, and the rest is measured as ever.
"""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

from slurm_colloc.monitor.gpu_reading import ERROR, UNSUPPORTED, Capabilities, limit_share

# ---- What `dcgmi discovery -l` and `dcgmi dmon` print; pure --------------------------------------
#
# Of fields dcgmi prints a head, then a line for each GPU and period, and the head again after some
# periods (dcgmi/DeviceMonitor.cpp of DCGM):
#
#     #Entity   GRACT        SMACT        TENSO        DRAMA
#     ID
#     GPU 0     0.931        0.512        0.204        N/A
#
# Older ones put a blank behind the `#`. Its numbers of GPUs are its own; which is which UUID's
# stands in what discovery prints:
#
#     | 0      | Name: NVIDIA A100-SXM4-40GB                                          |
#     |        | PCI Bus ID: 00000000:07:00.0                                         |
#     |        | Device UUID: GPU-1d82f4df-3cf9-150d-088b-52f18f8654e1                |

FIELDS: Mapping[int, tuple[str, str]] = {
    1001: ("GRACT", "engine_active"),
    1002: ("SMACT", "sm_active"),
    1004: ("TENSO", "tensor_active"),
    1005: ("DRAMA", "dram_active"),
}
"""DCGM's fields (DCGM_FI_PROF_* of dcgm_fields.h): their names in the head, and here."""

METRICS = {short: (name, number) for number, (short, name) in FIELDS.items()}
"""By the name in the head: the metric's name here, and the field."""

_NUMBER = re.compile(r"\|\s*(?P<number>[0-9]+)\s*\|")
_UUID = re.compile(r"Device UUID:\s*(?P<uuid>GPU-[0-9A-Fa-f-]+)")


class ActivityTable:
    """Reads the lines of dmon one by one.

    Attributes:
        columns: The names of the last head; empty before the first.
    """

    def __init__(self) -> None:
        self.columns: tuple[str, ...] = ()

    def read(self, line: str) -> tuple[int, dict[str, float | None]] | None:
        """Read a line.

        Returns:
            DCGM's number of the GPU and each known metric, 0 to 1, None where it is not
            available; None for a head, and for a line that is none of a whole GPU.
        """
        words = line.split()
        if words and words[0].startswith("#"):
            names = line.lstrip(" #").split()
            self.columns = tuple(names[1:])
            return None
        if len(words) < 2 or words[0] != "GPU" or not words[1].isdecimal():
            return None
        values = words[2:]
        if not self.columns or len(values) != len(self.columns):
            return None
        found = {
            METRICS[column][0]: _parse_share(value)
            for column, value in zip(self.columns, values, strict=True)
            if column in METRICS
        }
        return int(words[1]), found


def _parse_share(text: str) -> float | None:
    try:
        return limit_share(float(text))
    except ValueError:
        return None


def parse_discovery(text: str) -> dict[str, int]:
    """DCGM's number of each GPU, by UUID."""
    found: dict[str, int] = {}
    number: int | None = None
    for line in text.splitlines():
        head, uuid = _NUMBER.match(line.strip()), _UUID.search(line)
        if head is not None:
            number = int(head["number"])
        if uuid is not None and number is not None:
            found[uuid["uuid"]] = number
            number = None
    return found


# ---- Activity of GPUs as the site's DCGM tells it, by `dcgmi` as a child process -----------------

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
