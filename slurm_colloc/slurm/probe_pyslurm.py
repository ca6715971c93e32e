"""Whether pyslurm can be used here: found out in a child process, and remembered.

`import pyslurm` ends the whole process where libslurm finds no configuration (its fatal() calls
exit), so it is imported only after a child has done so.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_colloc.errors import SlurmError
from slurm_colloc.model.late_definitions import asdict, dataclass
from slurm_colloc.model.records import build_record
from slurm_colloc.slurm.pyslurm_backend import JOB_FIELDS
from slurm_colloc.slurm.run_command import build_client_environment, run_slurm

PROBE_TIMEOUT_S = 20.0
REMEMBERED_S = 24 * 3600.0
"""How long an answer holds where nothing that it depends on has changed."""

_CONFIGURATION = "/etc/slurm/slurm.conf"

_CHILD = """
import json, sys
from importlib.metadata import version
found = {"pyslurm": version("pyslurm"), "slurm": "", "problem": ""}
try:
    import pyslurm
    missing = [name for name in sys.argv[1:] if not hasattr(pyslurm.Job, name)]
    if missing or not hasattr(pyslurm, "Jobs"):
        found["problem"] = "lacks what csub needs"
    else:
        found["slurm"] = pyslurm.slurmctld.Config.load().version
except ImportError as error:
    found["problem"] = f"cannot be loaded: {error}"
except AttributeError as error:
    found["problem"] = f"lacks what csub needs: {error}"
except pyslurm.PyslurmError as error:
    found["problem"] = f"gets no answer: {error}"
print(json.dumps(found))
"""


@dataclass(frozen=True)
class PyslurmStatus:
    """What is known of pyslurm here.

    Attributes:
        pyslurm: Its version; empty where it is not installed.
        slurm: The version of the Slurm that runs, as the controller says it; empty where the
            question was not reached.
        problem: What is wrong with it, as a clause after its name; empty if nothing is.
    """

    pyslurm: str = ""
    slurm: str = ""
    problem: str = ""

    @property
    def usable(self) -> bool:
        """It imports, and its major release is the one that runs."""
        return not self.obstacle

    @property
    def obstacle(self) -> str:
        """Why it cannot be used, as a clause; empty if it can."""
        if not self.pyslurm:
            return "pyslurm is not installed"
        if self.problem:
            return f"pyslurm {self.pyslurm} {self.problem}"
        if parse_release(self.pyslurm) != parse_release(self.slurm):
            return f"pyslurm {self.pyslurm} does not match Slurm {self.slurm}"
        return ""


def parse_release(version: str) -> tuple[int, ...]:
    """The major release of a version of Slurm or pyslurm: `25.11.2` is (25, 11), `22.5.1` (22, 5).

    Empty for a text that is no version.
    """
    words = version.split(".")[:2]
    return tuple(int(word) for word in words) if all(word.isdigit() for word in words) else ()


def find_pyslurm(environ: Mapping[str, str], memory: str) -> PyslurmStatus:
    """Say whether pyslurm can be used; costs next to nothing where it is not installed.

    Args:
        environ: The environment; SLURM_CONF and PATH are read.
        memory: Path of the file that remembers the answer; empty to remember nothing.
    """
    from importlib.util import find_spec

    spec = find_spec("pyslurm")
    if spec is None or not spec.origin:
        return PyslurmStatus()
    key = compute_key(environ, spec.origin)
    known = _recall(memory, key)
    if known is not None:
        return known
    finding, lasts = probe_pyslurm()
    if lasts and memory:
        _remember(memory, key, finding)
    return finding


def probe_pyslurm() -> tuple[PyslurmStatus, bool]:
    """Import pyslurm and ask the controller's version, both in a child process.

    Returns:
        The finding, and whether it will be the same next time: a controller that is down is not
        pyslurm's fault.
    """
    # The import path is this process's, whatever the environment says.
    environment = {
        **build_client_environment(os.environ),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    argv = [sys.executable, "-c", _CHILD, *JOB_FIELDS]
    try:
        answer = run_slurm(argv, environment=environment, timeout_s=PROBE_TIMEOUT_S)
        finding = build_record(PyslurmStatus, json.loads(answer.stdout.splitlines()[-1]))
    except SlurmError as error:
        lines = error.stderr.strip().splitlines()
        words = lines[-1].strip() if lines else error.message
        finding = PyslurmStatus(_read_version(), "", f"cannot be imported: {words}")
    except (ValueError, IndexError, TypeError):
        finding = PyslurmStatus(_read_version(), "", "does not answer in a child process")
    if finding.slurm:
        return finding, True
    # A libslurm of another release may get no answer at all; then the release is the reason.
    installed = _ask_installed_version()
    if installed and parse_release(installed) != parse_release(finding.pyslurm):
        return PyslurmStatus(finding.pyslurm, installed), True
    return finding, False


def _ask_installed_version() -> str:
    """The version of Slurm's commands; empty where they do not run."""
    try:
        words = run_slurm(["sinfo", "--version"]).stdout.split()
    except SlurmError:
        return ""
    return words[-1] if words else ""


def _read_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pyslurm")
    except PackageNotFoundError:
        return "of unknown version"


def compute_key(environ: Mapping[str, str], origin: str) -> list[Any]:
    """All that the answer depends on: Python, pyslurm, the configuration and Slurm's programs."""
    squeue = shutil.which("squeue", path=environ.get("PATH"))
    configuration = environ.get("SLURM_CONF", "")
    return [
        sys.executable,
        sys.version,
        origin,
        _stamp(origin),
        configuration,
        _stamp(configuration or _CONFIGURATION),
        squeue,
        _stamp(squeue or ""),
    ]


def _stamp(path: str) -> list[int]:
    try:
        found = Path(path).stat()
    except OSError:
        return []
    return [found.st_mtime_ns, found.st_size]


def _recall(memory: str, key: list[Any]) -> PyslurmStatus | None:
    try:
        kept = json.loads(Path(memory).read_text(encoding="utf-8"))
        if kept["key"] == key and 0 <= time.time() - kept["time"] < REMEMBERED_S:
            return build_record(PyslurmStatus, kept["finding"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _remember(memory: str, key: list[Any], finding: PyslurmStatus) -> None:
    """Keep an answer; where that fails the next call asks again."""
    kept = {"key": key, "time": time.time(), "finding": asdict(finding)}
    temporary = Path(f"{memory}.tmp{os.getpid()}-{os.uname().nodename[:32]}-{os.urandom(4).hex()}")
    with contextlib.suppress(OSError):
        temporary.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # As all of the state, for its owner alone.
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(kept), encoding="utf-8")
        temporary.replace(memory)
