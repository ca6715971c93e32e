"""Settings of Slurm under which a GPU is not only the job's, or Slurm itself counts instances.

Read from slurmd's own files, because a hook calls no command of Slurm's. Parsing is pure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

_LIMIT_BYTES = 4 << 20
_INCLUDES_MAX = 32
_SETTING = re.compile(r"([A-Za-z_]+)\s*=\s*(\"[^\"]*\"|\S+)")
_BRACKETS = re.compile(r"([^\[\]]*)\[([0-9,\-]+)\]([^\[\]]*)")
_SHARED_GRES = ("shard", "mps")


def read_mig_conflict(slurm_conf: str, node: str) -> str:
    """Why Slurm's settings of this node do not go with dividing GPUs; empty where they do.

    Args:
        slurm_conf: Path of slurmd's slurm.conf; gres.conf lies next to it.
        node: Slurm's name of this node.
    """
    try:
        slurm_lines = list(_read_lines(slurm_conf))
    except OSError as error:
        return f"Slurm's settings in {slurm_conf} cannot be read ({error.strerror})"
    gres_conf = os.path.join(os.path.dirname(slurm_conf), "gres.conf")
    try:
        gres_lines = list(_read_lines(gres_conf))
    except FileNotFoundError:
        gres_lines = []
    except OSError as error:
        return f"Slurm's settings in {gres_conf} cannot be read ({error.strerror})"
    return find_mig_conflict(slurm_lines, gres_lines, node)


def find_mig_conflict(slurm_lines: list[str], gres_lines: list[str], node: str) -> str:
    """The same of the files' lines; pure."""
    for line in slurm_lines:
        values = _parse_line(line)
        if "acct_gather_energy/gpu" in values.get("acctgatherenergytype", ""):
            return "with AcctGatherEnergyType=acct_gather_energy/gpu Slurm keeps GPUs open"
        names = values.get("nodename", "")
        if names and is_named(names, node):
            for entry in values.get("gres", "").split(","):
                if entry.partition(":")[0] in _SHARED_GRES:
                    return f"this node offers gres/{entry.partition(':')[0]}: its GPUs are shared"
    for line in gres_lines:
        values = _parse_line(line)
        if not is_named(values.get("nodename", "ALL"), node):
            continue
        if values.get("autodetect", "") in ("nvml", "full"):
            return f"with AutoDetect={values['autodetect']} slurmd counts MIG instances as GPUs"
        if values.get("name", "") in _SHARED_GRES:
            return f"this node offers gres/{values['name']}: its GPUs are shared"
    return ""


def is_named(expression: str, node: str) -> bool:
    """Whether a host list of Slurm's, such as `gpu[01-04,7],login`, names a node; pure."""
    for word in re.split(r",(?![^\[]*\])", expression):
        if word in ("ALL", "DEFAULT", node):
            return True
        match = _BRACKETS.fullmatch(word)
        if match is None or not (node.startswith(match[1]) and node.endswith(match[3])):
            continue
        number = node[len(match[1]) : len(node) - len(match[3])]
        if number.isascii() and number.isdigit() and _is_in_ranges(number, match[2]):
            return True
    return False


def _is_in_ranges(number: str, ranges: str) -> bool:
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        # Leading zeros count: gpu[01-10] has gpu01 and no gpu1.
        has_width = len(number) == len(first) or (
            len(number) > len(first) and not number.startswith("0")
        )
        if first and has_width and int(first) <= int(number) <= int(last or first):
            return True
    return False


def _parse_line(line: str) -> dict[str, str]:
    values = _SETTING.findall(line.partition("#")[0])
    return {
        name.lower(): value.strip('"') if name.lower() == "nodename" else value.strip('"').lower()
        for name, value in values
    }


def _read_lines(path: str, depth: int = 0) -> Iterator[str]:
    """A file's lines, continued ones joined, with what it includes."""
    with open(path, "rb") as file:
        text = file.read(_LIMIT_BYTES).decode("utf-8", "replace")
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split()
        if len(words) == 2 and words[0].lower() == "include" and depth < _INCLUDES_MAX:
            yield from _read_lines(os.path.join(os.path.dirname(path), words[1]), depth + 1)
        else:
            yield line
