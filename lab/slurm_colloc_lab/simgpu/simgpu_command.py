"""The command `simgpu`: run a simulated training, look at the GPUs, make NVML misbehave."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.errors import CollocError, UsageProblem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from slurm_colloc_lab.simgpu.nvml.gpu_state import Node

_USAGE = """\
usage: simgpu run [OPTIONS]       behave like a training; see simgpu run --help
       simgpu status [--json]     the GPUs and who is on them
       simgpu mig on|off [UUID]   MIG mode of all GPUs of the node or one, as an administrator
                                  sets it who resets the GPU
       simgpu mig names board|memory    profile names with the driver's rounding, and without
       simgpu reboot [NODE]       the node's GPUs as after its reboot
       simgpu faults [WORD...]    make NVML misbehave; without a word: as it should again
           absent            there is no NVML library
           no-driver         the driver is not loaded
           hang=SECONDS      every call takes so long
           lie=uuid          GPUs give another UUID than the one that they are found by
           lie=processes     no process is listed
           lost, lost=UUID   all GPUs, or that one, have fallen off the bus
           fallen=UUID       the same, and its programs fail, too
           paced=UUID:PART   that GPU is slower: its programs have this part of their rates
           held=UUID         a service has that GPU or MIG device open: it cannot be destroyed
           vgpu              the GPUs are a guest's vGPUs
           real-latency      MIG calls take as long as on a real GPU
           fail=CALL:CODE    that call answers this error; CALL#N: only a process's Nth call
           slow=CALL:SECONDS, hang=CALL, lost-in=CALL    likewise: it takes longer, does not come
                             back, or the GPU is lost from then on
"""
_FAULT = re.compile(
    r"absent|no-driver|lie=uuid|lie=processes|(lost|fallen)=GPU-[\w-]+|lost|hang=\d+(\.\d+)?"
    r"|held=(GPU|MIG)-[\w-]+|vgpu|real-latency|paced=GPU-[\w-]+:0?\.\d+"
    r"|(hang|lost-in)=(nvml|cu)\w+(#\d+)?|fail=(nvml|cu)\w+(#\d+)?:\d+|slow=(nvml|cu)\w+(#\d+)?:\d+(\.\d+)?"
)
_MIG_WORDS = {
    "[0, 0]": "",
    "[1, 1]": "  MIG",
    "[0, 1]": "  MIG pending",
    "[1, 0]": "  MIG, off pending",
}
_MODE_NAMES = {0: "default", 2: "prohibited", 3: "exclusive_process"}


def main(argv: Sequence[str]) -> int:
    """Run one command; the exit status."""
    command, *rest = argv or ("--help",)
    try:
        if command == "run":
            # Imported here: nothing else is needed where many programs start at once.
            from slurm_colloc_lab.simgpu.training.training_program import main as run

            return run(rest)
        if command == "status" and rest in ([], ["--json"]):
            sys.stdout.write(_render_status(as_json=bool(rest)))
            return 0
        if command == "faults":
            _write_faults(rest)
            return 0
        if command == "mig" and rest:
            # Imported here, as above.
            from slurm_colloc_lab.simgpu.partition_command import run_mig

            run_mig(_find_node(), rest)
            return 0
        if command == "reboot" and len(rest) < 2:
            from slurm_colloc_lab.simgpu.partition_command import run_reboot

            run_reboot(_find_node(), rest)
            return 0
        if command in ("-h", "--help", "help"):
            sys.stdout.write(_USAGE)
            return 0
        raise UsageProblem(f"simgpu has no command '{' '.join(argv)}'", hint="see simgpu --help")
    except CollocError as problem:
        sys.stderr.write(f"simgpu: error: {problem}\n")
        return problem.exit_code


def _find_node() -> Node:
    from slurm_colloc_lab.simgpu.nvml.gpu_state import open_node

    return open_node(os.environ)


def _find_root() -> Path:
    return _find_node().directory.parent.parent


def _render_status(*, as_json: bool) -> str:
    from slurm_colloc_lab.simgpu.install import list_nodes
    from slurm_colloc_lab.simgpu.partition_command import describe_mig_devices

    rows: list[dict[str, object]] = []
    for node in list_nodes(_find_root()):
        node.reap()
        processes = node.read_processes()
        for gpu in node.read_gpus():
            here = [process for process in processes if gpu.uuid in process.gpus]
            rows.append(
                {
                    "node": node.name,
                    "nvml_index": gpu.nvml_index,
                    "uuid": gpu.uuid,
                    "name": gpu.name,
                    "compute_mode": _MODE_NAMES.get(gpu.compute_mode, str(gpu.compute_mode)),
                    "gpu_memory_mb": gpu.gpu_memory_mb,
                    "used_gpu_memory_mb": sum(process.gpu_memory_mb for process in here),
                    "mig_mode": [gpu.mig_mode, gpu.mig_pending],
                    "mig_devices": describe_mig_devices(node, gpu),
                    "processes": [
                        {
                            "pid": process.pid,
                            "uid": process.uid,
                            "type": process.type,
                            "gpu_memory_mb": process.gpu_memory_mb,
                            "sm_share": round(process.sm_share, 1),
                            "mps_server": process.mps_server,
                            "instance": process.instance or None,
                        }
                        for process in here
                    ],
                }
            )
    if as_json:
        return json.dumps(rows, indent=2) + "\n"
    lines = []
    for row in rows:
        lines.append(
            f"{row['node']}:{row['nvml_index']}  {row['uuid']}  {row['name']}  "
            f"{row['compute_mode']}  {row['used_gpu_memory_mb']} of {row['gpu_memory_mb']} MiB"
            f"{_MIG_WORDS[str(row['mig_mode'])]}"
        )
        lines += [
            f"    {device['uuid']}  {device['profile']}  instance {device['instance']}  "
            f"memory slices {device['placement']}"
            for device in row["mig_devices"]  # type: ignore[attr-defined]
        ]
        for process in row["processes"]:  # type: ignore[attr-defined]
            instance = f"  instance {process['instance']}" if process["instance"] else ""
            server = f"  server {process['mps_server']}" if process["mps_server"] else ""
            lines.append(
                f"    pid {process['pid']}  uid {process['uid']}  {process['type']}  "
                f"{process['gpu_memory_mb']} MiB  SM {process['sm_share']} %{server}{instance}"
            )
    return "".join(f"{line}\n" for line in lines)


def _write_faults(words: Sequence[str]) -> None:
    from slurm_colloc_lab.simgpu.nvml.gpu_state import write_file

    for word in words:
        if not _FAULT.fullmatch(word):
            raise UsageProblem(f"NVML knows no fault '{word}'", hint="see simgpu --help")
    write_file(_find_root() / "faults", " ".join(words) + "\n", 0o644)
