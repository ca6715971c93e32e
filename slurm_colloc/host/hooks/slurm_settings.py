"""Settings of Slurm under which a GPU is not only the job's, or Slurm itself counts instances.

Read from slurmd's own files, because a hook calls no command of Slurm's. Parsing is pure.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator

_LIMIT_BYTES = 4 << 20
_INCLUDES_MAX = 32
_SETTING = re.compile(r"([A-Za-z_]+)\s*=\s*(\"[^\"]*\"|\S+)")
_NAME_PART = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_SHARED_GRES = ("shard", "mps")
_COUNTED_BY = ("nvml", "full")


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
        # There need be none; one that includes a file that is missing is another thing.
        gres_lines = list(_read_lines(gres_conf)) if os.path.lexists(gres_conf) else []
    except OSError as error:
        return f"Slurm's settings in {gres_conf} cannot be read ({error.strerror})"
    return find_mig_conflict(slurm_lines, gres_lines, node)


def find_mig_conflict(slurm_lines: list[str], gres_lines: list[str], node: str) -> str:
    """The same of the files' lines; pure."""
    for values in map(_parse_line, slurm_lines):
        if "acct_gather_energy/gpu" in values.get("acctgatherenergytype", ""):
            return "with AcctGatherEnergyType=acct_gather_energy/gpu Slurm keeps GPUs open"
        shared = _find_shared(values.get("gres", "").split(","))
        if shared and (told := _tell_if_named(values.get("nodename", ""), node, shared)):
            return told
    for values in map(_parse_line, gres_lines):
        names = values.get("nodename", "ALL")
        detected = values.get("autodetect", "")
        shared = _find_shared([values.get("name", "")])
        if any(word in detected for word in _COUNTED_BY):
            shared = f"with AutoDetect={detected} slurmd counts MIG instances as GPUs"
        if shared and (told := _tell_if_named(names, node, shared)):
            return told
    return ""


def _find_shared(entries: list[str]) -> str:
    names = [entry.partition(":")[0].strip() for entry in entries]
    name = next((name for name in names if name in _SHARED_GRES), "")
    return f"this node offers gres/{name}: its GPUs are shared" if name else ""


def _tell_if_named(names: str, node: str, conflict: str) -> str:
    """A conflict, where it is this node's or may be."""
    try:
        return conflict if is_named(names, node) else ""
    except ValueError as error:
        return f"{conflict}, or it is of other nodes: {error}"


def is_named(expression: str, node: str) -> bool:
    """Whether a host list of Slurm's, such as `r[1-2]n[01-04,7],login`, names a node; pure.

    Raises:
        ValueError: It is not understood.
    """
    for word in re.split(r",(?![^\[]*\])", expression):
        if word in ("ALL", "DEFAULT", node):
            return True
        if _matches(_split_name(word), node):
            return True
    return False


def _split_name(word: str) -> list[str | tuple[tuple[str, str], ...]]:
    """The texts of a name, and the ranges between them."""
    parts: list[str | tuple[tuple[str, str], ...]] = []
    at = 0
    while at < len(word):
        part = _NAME_PART.match(word, at)
        if part is None:
            raise ValueError(f"the host list {word!a} is not understood")
        at = part.end()
        parts.append(part[2] or tuple(_split_range(one, word) for one in part[1].split(",")))
    return parts


def _split_range(text: str, word: str) -> tuple[str, str]:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise ValueError(f"the host list {word!a} is not understood")
    return match[1], match[2] or match[1]


def _matches(parts: list[str | tuple[tuple[str, str], ...]], text: str) -> bool:
    if not parts:
        return not text
    first, rest = parts[0], parts[1:]
    if isinstance(first, str):
        return text.startswith(first) and _matches(rest, text[len(first) :])
    # A number may end at any digit, because another may follow it directly.
    for length in range(1, len(text) + 1):
        number = text[:length]
        if not (number.isascii() and number.isdigit()):
            break
        if any(_is_in_range(number, *one) for one in first) and _matches(rest, text[length:]):
            return True
    return False


def _is_in_range(number: str, first: str, last: str) -> bool:
    # Leading zeros count: gpu[01-10] has gpu01 and no gpu1.
    has_width = len(number) == len(first) or (
        len(number) > len(first) and not number.startswith("0")
    )
    return has_width and int(first) <= int(number) <= int(last)


def _parse_line(line: str) -> dict[str, str]:
    values = _SETTING.findall(line.partition("#")[0])
    return {
        name.lower(): value.strip('"') if name.lower() == "nodename" else value.strip('"').lower()
        for name, value in values
    }


def _read_lines(path: str, depth: int = 0) -> Iterator[str]:
    """A file's lines, continued ones joined, with what it includes."""
    with open(path, "rb") as file:
        data = file.read(_LIMIT_BYTES + 1)
    if len(data) > _LIMIT_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    text = data.decode("utf-8", "replace")
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split()
        if len(words) == 2 and words[0].lower() == "include" and depth < _INCLUDES_MAX:
            yield from _read_lines(os.path.join(os.path.dirname(path), words[1]), depth + 1)
        else:
            yield line
