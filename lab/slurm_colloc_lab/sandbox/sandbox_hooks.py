"""Root's hooks in a sandbox: a copy of them with constants of its own, and taking back their work.

Each node is a directory of its own below `prepared`, as several slurmd share this machine.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

from slurm_colloc.errors import StateError
from slurm_colloc.host.hooks.epilog import JobUndo
from slurm_colloc.host.hooks.recover_jobs import read_or_guess
from slurm_colloc.host.hooks.run_directory import RunDirectory
from slurm_colloc.resources import data_path
from slurm_colloc.runtime.node_daemon import POLICY_VARIABLE, RUN_VARIABLE
from slurm_colloc_lab.sandbox.sandbox_record import write_file
from slurm_colloc_lab.sandbox.sandbox_spec import Layout

NAMES = ("prolog.sh", "epilog.sh")
_LAUNCHER = '#!/bin/sh\nexec {python} "$@"\n'


def install_hooks(layout: Layout, *, has_simulation: bool, may_divide: bool) -> None:
    """Write the hooks' copies, and a policy where there is none yet.

    Args:
        layout: Whose.
        has_simulation: The nodes' GPUs are simulated.
        may_divide: The policy lets jobs divide GPUs, and turn MIG on where a reboot has lost it.

    Raises:
        StateError: A file cannot be written.
    """
    for directory in (layout.hooks, layout.prepared):
        directory.mkdir(mode=0o755, exist_ok=True)
        directory.chmod(0o755)
    constants = {
        "prefix": shlex.quote(str(_find_prefix(layout))),
        # slurmd names its node to the hook.
        "run": f"{shlex.quote(str(layout.prepared))}/$SLURMD_NODENAME",
        "policy": shlex.quote(str(layout.hooks / "node.toml")),
        "driver": shlex.quote(str(layout.simgpu)) if has_simulation else "",
    }
    for name in NAMES:
        text = data_path("hooks", name).read_text(encoding="utf-8")
        write_file(layout.hooks / name, set_constants(text, constants), mode=0o755)
    policy = layout.hooks / "node.toml"
    if not policy.exists():
        lines = [
            f'audit_log = "{layout.log}/hooks.log"\n',
            f'state_directory = "{layout.hooks}/state"\n',
        ]
        if may_divide:
            lines.append('mig = "switch"\nmig_mps_inside = true\n')
        write_file(policy, "".join(lines), mode=0o644)


def set_constants(text: str, constants: dict[str, str]) -> str:
    """Give the constants of a hook's script other values; pure.

    Raises:
        StateError: The script does not have one of them exactly once.
    """
    for name, value in constants.items():
        pattern = re.compile(rf"^{name}=.*$", re.MULTILINE)
        if len(pattern.findall(text)) != 1:
            raise StateError(f"the hook's script has no line {name}=", hint="install csub again")
        line = f"{name}={value}"
        text = pattern.sub(lambda _, line=line: line, text)  # type: ignore[misc]
    return text


def _find_prefix(layout: Layout) -> Path:
    """Where `bin/python` finds this package; one is made where this interpreter has no such."""
    prefix = Path(sys.prefix)
    if (prefix / "bin" / "python").exists():
        return prefix
    own = layout.hooks / "prefix"
    (own / "bin").mkdir(parents=True, exist_ok=True)
    launcher = _LAUNCHER.format(python=shlex.quote(sys.executable))
    write_file(own / "bin" / "python", launcher, mode=0o755)
    return own


def build_hook_environment(layout: Layout) -> dict[str, str]:
    """Where runners, and `csub admin`, look for what the hooks have prepared."""
    return {
        RUN_VARIABLE: f"{layout.prepared}/%n",
        POLICY_VARIABLE: str(layout.hooks / "node.toml"),
    }


def undo_prepared(layout: Layout) -> None:
    """Take back what hooks have prepared for jobs that were killed with their slurmd."""
    if os.geteuid() != 0 or not layout.prepared.is_dir():
        return
    simulation = str(layout.simgpu) if (layout.simgpu / "driver").exists() else ""
    for entry in sorted(layout.prepared.iterdir()):
        try:
            run = RunDirectory(str(entry), makes=False)
        except FileNotFoundError:
            continue
        try:
            for job_id in {*run.list_jobs(), *run.list_directories()}:
                checkpoint, _ = read_or_guess(run, job_id)
                if checkpoint is not None:
                    JobUndo(run, checkpoint, driver=simulation, node=entry.name).undo()
        finally:
            run.close()


def remove_hooks(layout: Layout) -> None:
    """Remove the hooks' files."""
    for directory in (layout.hooks, layout.prepared):
        shutil.rmtree(directory, ignore_errors=True)
