"""`csub admin mig export` and `assert`: a node's MIG in the file format of NVIDIA's mig-parted."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from slurm_colloc.administration.mig_parted import (
    DividedGpu,
    build_export,
    choose_configuration,
    find_differences,
    render_yaml,
)
from slurm_colloc.administration.node_paths import find_places
from slurm_colloc.cli.admin.admin_hooks import need_root
from slurm_colloc.errors import NodeError, StateError, UsageProblem
from slurm_colloc.host.mig.instance_records import describe_instances
from slurm_colloc.host.mig.mig_session import MigSession
from slurm_colloc.host.nvml.nvml_query import NVML_S, start_question

DIFFERS = 1
"""How `assert` ends where a GPU is not as the file wants it, as mig-parted does."""

_READ_S = 15.0
_LIMIT_BYTES = 1 << 20
_LABEL_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"


def export_mig(options: argparse.Namespace) -> int:
    """Print how this node's GPUs are divided.

    Raises:
        UsageProblem: It is not root, or the label cannot stand in YAML as it is.
        NodeError: NVML does not say all of it.
    """
    if not options.label or set(options.label) - set(_LABEL_LETTERS):
        raise UsageProblem("a label has letters, digits, dots, - and _")
    spec = build_export(read_divided_gpus(), options.label)
    is_json = options.output_format == "json"
    sys.stdout.write(json.dumps(spec, indent=2) + "\n" if is_json else render_yaml(spec))
    return 0


def assert_mig(options: argparse.Namespace) -> int:
    """Compare this node's GPUs with a file; 0 where all are as it says.

    Raises:
        CollocError: It is not root, the file cannot be used, or NVML does not say all of it.
    """
    origin = "standard input" if options.config_file == "-" else options.config_file
    value = parse_file(_read_file(options.config_file), origin)
    wishes = choose_configuration(value, options.selected_config, origin)
    told = find_differences(wishes, read_divided_gpus(), mode_only=options.mode_only)
    for line in told:
        sys.stdout.write(f"{line}\n")
    if not told:
        sys.stdout.write("all GPUs are as the configuration says\n")
    return DIFFERS if told else 0


def read_divided_gpus() -> tuple[DividedGpu, ...]:
    """How all GPUs of this node are divided.

    Raises:
        UsageProblem: It is not root: NVML lists instances for root alone.
        NodeError: NVML does not say all of it.
    """
    need_root("see what a GPU is divided into", hint="call it with sudo")
    driver, node = find_places(os.environ).driver, os.environ.get("SLURMD_NODENAME", "")
    answer = start_question(driver, node).ask(NVML_S)
    if answer.problem:
        raise NodeError(f"this node's GPUs cannot be read: {answer.problem}")
    minors = {}
    for gpu in answer.gpus:
        if gpu.uuid is None or gpu.minor_number is None:
            raise NodeError(f"NVML does not say what GPU {gpu.nvml_index} is")
        minors[gpu.uuid] = gpu.minor_number
    with MigSession(
        "", minors, driver=driver, node=node, ends_at=time.monotonic() + _READ_S
    ) as session:
        found = {gpu.uuid: gpu for gpu in session.read()}
    divided = []
    for gpu in answer.gpus:
        state = found[gpu.uuid or ""]
        if state.is_on and state.instances is None:
            raise NodeError(f"NVML does not say what GPU {gpu.nvml_index} is divided into")
        names = Counter(str(one["profile"]) for one in describe_instances(state))
        device_id = "" if state.pci_device_id is None else f"0x{state.pci_device_id:08X}"
        divided.append(DividedGpu(gpu.nvml_index, device_id, state.is_on, names))
    return tuple(divided)


def parse_file(data: bytes, origin: str) -> Any:
    """Read JSON, or YAML where PyYAML is installed (docs/decisions/0032-mig-parted-files.md).

    Args:
        data: The file.
        origin: Its name, for messages.

    Raises:
        UsageProblem: It is neither.
        StateError: It is not JSON, and there is nothing that reads YAML.
    """
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageProblem(f"{origin} is not UTF-8") from error
    except (ValueError, RecursionError):
        pass
    try:
        import yaml
    except ImportError as error:
        raise StateError(
            f"{origin} is not JSON, and PyYAML is not installed for {sys.executable}",
            hint="install python3-yaml there, or give it JSON: nvidia-mig-parted export -o json",
        ) from error
    try:
        return yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageProblem(f"{origin} is neither YAML nor JSON") from error


def _read_file(path: str) -> bytes:
    try:
        if path == "-":
            data = sys.stdin.buffer.read(_LIMIT_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(_LIMIT_BYTES + 1)
    except OSError as error:
        raise UsageProblem(f"{path} cannot be read ({error.strerror})") from error
    if len(data) > _LIMIT_BYTES:
        raise UsageProblem(f"{path} is longer than {_LIMIT_BYTES >> 20} MiB")
    return data
