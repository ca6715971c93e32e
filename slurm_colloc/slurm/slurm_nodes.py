"""Questions about Slurm itself: its versions and its nodes one by one.

Also: which Slurm cluster this machine's commands belong to.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from slurm_colloc.errors import SlurmError
from slurm_colloc.model.late_definitions import dataclass, late_pattern
from slurm_colloc.slurm.real_command import find_real_command
from slurm_colloc.slurm.run_command import run_slurm
from slurm_colloc.slurm.slurm_commands import parse_nodes

NODE_STATE_FORMAT = "%N|%P|%T|%G|%v|%E"
"""sinfo -N -o: node, partition, state, GRES, slurmd's version, why it is down or drained."""

# sinfo puts a mark behind a state: `~` for a node that is off. One that does not
# answer has `*`, and gets no job.
_USABLE = late_pattern(
    r"(idle|mixed|allocated|completing|planned|blocked|reserved|powering_up|powered_down|powering_down)"
    r"[~#%+@^-]*"
)


@dataclass(frozen=True)
class NodeState:
    """A node of a partition, as sinfo shows it.

    Attributes:
        name: Its name.
        partition: The partition.
        is_default: It is the partition of jobs that name none.
        state: Its state, in small letters, with sinfo's mark.
        gpus: How many GPUs Slurm gives from it.
        version: Of its slurmd; empty where Slurm does not know it.
        reason: Why it is down or drained; empty for nothing.
    """

    name: str
    partition: str
    is_default: bool
    state: str
    gpus: int
    version: str
    reason: str

    @property
    def is_usable(self) -> bool:
        """It takes jobs, now or when it becomes free."""
        return _USABLE.fullmatch(self.state) is not None


def list_node_states() -> list[NodeState]:
    """All nodes of all partitions; one question.

    Raises:
        SlurmError: Slurm does not answer.
    """
    argv = ["sinfo", "--noheader", "--all", "--Node", "--exact", f"--format={NODE_STATE_FORMAT}"]
    return parse_node_states(run_slurm(argv).stdout)


def parse_node_states(text: str) -> list[NodeState]:
    """Read the lines of sinfo with NODE_STATE_FORMAT; lines of another shape are skipped."""
    found = []
    for line in text.split("\n"):
        fields = line.strip().split("|", 5)
        if len(fields) != 6:
            continue
        name, partition, state, gres, version, reason = fields
        # A node without CPUs would be none of the partition's.
        shapes = parse_nodes(f"{partition}|1|0|{gres}|n/a|n/a")
        found.append(
            NodeState(
                name,
                partition.rstrip("*"),
                partition.endswith("*"),
                state.lower(),
                sum(count for shape in shapes for _, count in shape.gpus),
                version if re.match(r"\d", version) else "",
                "" if reason in ("none", "None", "(null)") else reason,
            )
        )
    return found


def count_gpus(states: Sequence[NodeState], partitions: str | None) -> int | None:
    """GPUs of the usable nodes of a comma separated list of partitions, of any type.

    Args:
        states: All nodes.
        partitions: The value of `--partition`; None for the default partition.

    Returns:
        How many; None where there are none.
    """
    names = set(partitions.split(",")) if partitions else None
    gpus = {
        state.name: state.gpus
        for state in states
        if state.is_usable and (state.is_default if names is None else state.partition in names)
    }
    return sum(gpus.values()) or None


def read_client_version() -> str:
    """The version of the commands here, `22.05.8`; empty where they say something else.

    Raises:
        SlurmError: They cannot be run.
    """
    words = run_slurm(["sinfo", "--version"]).stdout.split()
    return words[-1] if words else ""


# ---- Which Slurm cluster this machine's commands belong to ---------------------------------------
#
# A home directory may serve several clusters, whose job ids mean different jobs.

_CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
"""Where it lies by default, and where slurmd keeps it on configless clusters (slurm.conf(5))."""


def read_cluster_name(environ: Mapping[str, str]) -> str:
    """ClusterName of slurm.conf, in small letters as Slurm itself has it.

    Args:
        environ: The environment; SLURM_CONF names the file.

    Returns:
        Empty where it cannot be read: a site may have built Slurm with another place for it.
    """
    named = environ.get("SLURM_CONF")
    for path in (named,) if named else _CONFIGURATIONS:
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - pathlib costs a submission 3 ms
                for line in file:
                    name, separator, value = line.partition(b"=")
                    if separator and name.strip().lower() == b"clustername":
                        return os.fsdecode(value.split(b"#")[0].strip()).lower()
        except OSError:
            continue
    return ""


def describe_client(environ: Mapping[str, str]) -> str:
    """What the answer of Slurm's commands here depends on: the host and which commands they are.

    Returns:
        Empty where there are none.
    """
    program = find_real_command("scontrol", environ.get("PATH"))
    if program is None:
        return ""
    return f"{os.uname().nodename}:{os.path.realpath(program)}:{environ.get('SLURM_CONF', '')}"


def ask_cluster_name() -> str:
    """ClusterName as the controller says it; empty where it does not answer."""
    try:
        lines = run_slurm(["scontrol", "show", "config"]).stdout.split("\n")
    except SlurmError:
        return ""
    for name, _, value in (line.partition("=") for line in lines):
        if name.strip() == "ClusterName":
            return value.strip().lower()
    return ""
