"""What a site allows the hooks of a node to do: /etc/slurm_colloc/node.toml; who: root.

Also: settings of Slurm under which a GPU is not only the job's, or Slurm itself counts instances.

A file that cannot be believed allows nothing, so nothing in it is ever guessed.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields

from slurm_colloc.errors import NodeError, StateError
from slurm_colloc.host.hooks.hook_job import HookJob
from slurm_colloc.host.system.directories import open_trusted
from slurm_colloc.model.comment_token import Token

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


DEFAULT_POLICY = "/etc/slurm_colloc/node.toml"
LIMIT_BYTES = 64 * 1024
MPS = "mps"
KNOWN_MODES = (MPS,)
"""The modes that hooks of this version can prepare; MIG has settings of its own."""

MIG_OFF, MIG_WHERE_ON, MIG_SWITCH = MIG_CHOICES = ("off", "where-on", "switch")

REMOVED_KEYS: Mapping[str, str] = {
    "mig_change": "mig_change is ignored, because MIG instances do not change while a job runs: "
    "remove the line",
}
"""Keys that a policy may still have from an earlier version; what is said of each."""

_LONGEST_S = 3600.0

_STRING = r'"[ !#-\[\]-~]*"'
"""Printable ASCII without quote and backslash."""

_PLAIN_LINE = re.compile(
    rf"[ \t]*(?:(?P<key>[A-Za-z_]+)[ \t]*=[ \t]*(?P<value>true|false|{_STRING}"
    r"|(?:0|[1-9][0-9]{0,9})(?:\.[0-9]{1,9})?"
    rf"|\[ *(?:{_STRING}(?: *, *{_STRING})*)? *\]))?[ \t]*(?:#[ -~]*)?"
)
"""A setting, a comment or nothing, in the part of TOML that is JSON as well."""


@dataclass(frozen=True)
class NodePolicy:
    """What the hooks may do on this node.

    Args:
        enabled: The switch: without it the prolog prepares nothing; the epilog undoes all the same.
        modes: Sharing modes that may be prepared; MIG has settings of its own.
        partitions: Partitions whose jobs may have them; empty for all.
        accounts: Accounts likewise; empty for all.
        max_gpus: A job with more GPUs on this node is left alone.
        exclusive_process: Set compute mode EXCLUSIVE_PROCESS for the job, so that no process uses
            the GPU without MPS by mistake. Not for nodes that offer gres/shard or gres/mps.
        strict: A job for which nothing can be prepared does not start: the prolog fails, and Slurm
            drains the node.
        deadline_s: How long a hook may take in all; less than Slurm's PrologEpilogTimeout.
        stop_s: How much of that is kept for undoing what a prolog has begun.
        require_limits: Prepare nothing where a daemon's devices, host memory and processes cannot
            be limited.
        daemon_memory_mb: Host memory of a job's daemons and servers together (MiB), where Slurm
            does not run the hooks inside the job.
        daemon_processes: Processes and threads of these.
        directory_mb: What a job's user may write into the daemons' directories (MiB).
        mig: Whether jobs may divide their GPUs by MIG: `off`, `where-on` (only GPUs whose MIG mode
            is on already) or `switch` (it may also be turned on and off, from Hopper on).
        mig_profiles: Names of the profiles they may have, as NVML has them; empty for all.
        mig_mps_inside: A job may start MPS daemons inside its instances.
        mig_slow_s: How much longer than `deadline_s` a hook waits for an NVML that is slow to take
            a job's instances away, before it says that the node is not fit for the next job.
        power_limit_min_w: The lowest power limit that a job may have set on its GPUs, in watts; 0:
            none is ever set. A limit that a GPU has is never raised.
        state_directory: Where root keeps what has to outlast a reboot: on which GPUs MIG was on
            while a job had them divided; empty for nowhere.
        audit_log: Where each run of a hook writes one line; empty for nowhere.
        ignored: What is said of the removed keys that the file has; no key of its own.
    """

    enabled: bool = True
    modes: tuple[str, ...] = KNOWN_MODES
    partitions: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    max_gpus: int = 16
    exclusive_process: bool = False
    strict: bool = False
    deadline_s: float = 20.0
    stop_s: float = 10.0
    require_limits: bool = False
    daemon_memory_mb: int = 2048
    daemon_processes: int = 1024
    directory_mb: int = 64
    mig: str = MIG_OFF
    mig_profiles: tuple[str, ...] = ()
    mig_mps_inside: bool = False
    mig_slow_s: float = 30.0
    power_limit_min_w: int = 0
    state_directory: str = "/var/lib/slurm_colloc"
    audit_log: str = "/var/log/slurm_colloc/hooks.log"
    ignored: tuple[str, ...] = ()

    @property
    def longest_s(self) -> float:
        """How long a hook may take in all, a slow NVML included."""
        return self.deadline_s + (0.0 if self.mig == MIG_OFF else self.mig_slow_s)


def read_policy(path: str) -> NodePolicy:
    """Read the site's policy.

    Raises:
        StateError: It is missing, someone other than root could have written it, or it says
            something that this version does not know.
    """
    data = _read_trusted(path)
    try:
        text = data.decode("utf-8")
        value = parse_plain_lines(text)
        if value is None:
            import tomllib

            value = tomllib.loads(text)
    except (ImportError, ValueError) as error:
        raise StateError(f"the policy {path} is not TOML that can be read ({error})") from error
    return parse_policy(value, path)


def parse_plain_lines(text: str) -> dict[str, Any] | None:
    """Read a policy as nearly all are, a plain value on each line, without TOML's parser; pure.

    It takes a third of the prolog's time to load. What this reads, that one reads alike.

    Returns:
        The values; None where there is anything else, or anything wrong.
    """
    values: dict[str, Any] = {}
    for line in text.split("\n"):
        match = _PLAIN_LINE.fullmatch(line)
        if match is None or match["key"] in values:
            return None
        if match["key"]:
            try:
                values[match["key"]] = json.loads(match["value"])
            except ValueError:
                return None
    return values


def _read_trusted(path: str) -> bytes:
    directory, name = os.path.split(os.path.abspath(path))
    try:
        parent = open_trusted(directory)
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=parent)
        finally:
            os.close(parent)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise StateError(f"the policy {path} is not a file of root's")
            if status.st_mode & 0o022:
                raise StateError(f"the policy {path} may be written by others than root")
            data = file.read(LIMIT_BYTES + 1)
    except NodeError as error:
        raise StateError(f"the policy {path} cannot be trusted: {error.message}") from error
    except OSError as error:
        raise StateError(f"the policy {path} cannot be read ({error.strerror})") from error
    if len(data) > LIMIT_BYTES:
        raise StateError(f"the policy {path} is longer than {LIMIT_BYTES // 1024} KiB")
    return data


def parse_policy(value: dict[str, Any], path: str) -> NodePolicy:
    """Check every key and value; pure.

    Raises:
        StateError: A key is unknown or a value is out of range.
    """
    found: dict[str, Any] = {
        "ignored": tuple(REMOVED_KEYS[key] for key in value if key in REMOVED_KEYS)
    }
    for key, item in value.items():
        if key in REMOVED_KEYS:
            continue
        check = _CHECKS.get(key)
        if check is None:
            raise StateError(f"the policy {path} has the unknown key {key[:64]!r}")
        if not check(item):
            raise StateError(f"the policy {path} has no usable value for {key}: {str(item)[:64]!r}")
        found[key] = tuple(item) if isinstance(item, list) else item
    for key in ("deadline_s", "stop_s", "mig_slow_s"):
        if key in found:
            found[key] = float(found[key])
    policy = NodePolicy(**found)
    if policy.stop_s >= policy.deadline_s:
        raise StateError(f"the policy {path} leaves no time: stop_s must be below deadline_s")
    return policy


def _is_switch(item: Any) -> bool:
    return isinstance(item, bool)


def _is_words(item: Any) -> bool:
    return isinstance(item, list) and all(isinstance(word, str) and word for word in item)


def _is_count(item: Any, largest: int, least: int = 1) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and least <= item <= largest


def _is_place(item: Any) -> bool:
    return isinstance(item, str) and (not item or os.path.isabs(item))


def _is_seconds(item: Any, least: float = 0.001) -> bool:
    is_number = isinstance(item, (int, float)) and not isinstance(item, bool)
    return is_number and least <= item <= _LONGEST_S


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "enabled": _is_switch,
    "modes": lambda item: _is_words(item) and all(word in KNOWN_MODES for word in item),
    "partitions": _is_words,
    "accounts": _is_words,
    "max_gpus": lambda item: _is_count(item, 1024),
    "exclusive_process": _is_switch,
    "strict": _is_switch,
    "deadline_s": _is_seconds,
    "stop_s": _is_seconds,
    "require_limits": _is_switch,
    "daemon_memory_mb": lambda item: _is_count(item, 1 << 24, 64),
    "daemon_processes": lambda item: _is_count(item, 1 << 20, 16),
    "directory_mb": lambda item: _is_count(item, 1 << 16),
    "mig": lambda item: item in MIG_CHOICES,
    "mig_profiles": _is_words,
    "mig_mps_inside": _is_switch,
    "mig_slow_s": lambda item: _is_seconds(item, least=0.0),
    "power_limit_min_w": lambda item: _is_count(item, 9999, 0),
    "state_directory": _is_place,
    "audit_log": _is_place,
}
SETTINGS = tuple(_CHECKS)
"""The keys of a policy, in the order in which they are declared."""

assert (*SETTINGS, "ignored") == tuple(field.name for field in fields(NodePolicy))


NO_POWER = "the site's policy lets no job set a power limit"


class Denied(Exception):
    """The site's policy does not let this job have it: no fault of the node's."""


def check_permission(policy: NodePolicy, job: HookJob, token: Token) -> None:
    """See whether the site lets a job have what it asks for.

    Args:
        policy: What the site allows, and does not switch off.
        job: The job.
        token: What it asks for.

    Raises:
        Denied: It does not.
    """
    if token.mode == "off" and not policy.power_limit_min_w:
        raise Denied(NO_POWER)
    if token.mode not in (*policy.modes, "off") and not token.layout:
        raise Denied(f"the site's policy has no mode {token.mode}")
    if token.layout and policy.mig == MIG_OFF and MPS not in policy.modes:
        raise Denied("the site's policy does not let jobs divide GPUs by MIG")
    if policy.partitions and job.partition not in policy.partitions:
        raise Denied("the site's policy leaves out this partition")
    if policy.accounts and job.account not in policy.accounts:
        raise Denied("the site's policy leaves out this account")
    if job.gpus is not None and len(job.gpus) > policy.max_gpus:
        raise Denied(f"the site's policy takes {policy.max_gpus} GPUs at most")
    if not job.uid or job.gid is None:
        raise Denied("GPUs are prepared for ordinary users only")


# ----
# Settings of Slurm under which a GPU is not only the job's, or Slurm itself counts instances.
#
# Read from slurmd's own files, because a hook calls no command of Slurm's. Parsing is pure.

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
    return _read_conflict(slurm_conf, node, find_mig_conflict)


def read_shared_conflict(slurm_conf: str, node: str) -> str:
    """Why a GPU of this node may be of several jobs, by Slurm's settings; empty where it is not.

    Args:
        slurm_conf: Path of slurmd's slurm.conf; gres.conf lies next to it.
        node: Slurm's name of this node.
    """
    return _read_conflict(slurm_conf, node, find_shared_conflict)


def _read_conflict(
    slurm_conf: str, node: str, find: Callable[[list[str], list[str], str], str]
) -> str:
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
    return find(slurm_lines, gres_lines, node)


def find_mig_conflict(slurm_lines: list[str], gres_lines: list[str], node: str) -> str:
    """The same of the files' lines; pure."""
    for values in map(_parse_line, slurm_lines):
        if "acct_gather_energy/gpu" in values.get("acctgatherenergytype", ""):
            return "with AcctGatherEnergyType=acct_gather_energy/gpu Slurm keeps GPUs open"
    for values in map(_parse_line, gres_lines):
        detected = values.get("autodetect", "")
        if any(word in detected for word in _COUNTED_BY):
            told = f"with AutoDetect={detected} slurmd counts MIG instances as GPUs"
            if told := _tell_if_named(values.get("nodename", "ALL"), node, told):
                return told
    return find_shared_conflict(slurm_lines, gres_lines, node)


def find_shared_conflict(slurm_lines: list[str], gres_lines: list[str], node: str) -> str:
    """Why GPUs of a node may be of several jobs, by the files' lines; pure."""
    for values in map(_parse_line, slurm_lines):
        shared = _find_shared(values.get("gres", "").split(","))
        if shared and (told := _tell_if_named(values.get("nodename", ""), node, shared)):
            return told
    for values in map(_parse_line, gres_lines):
        names = values.get("nodename", "ALL")
        shared = _find_shared([values.get("name", "")])
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
