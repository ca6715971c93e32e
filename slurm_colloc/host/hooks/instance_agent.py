"""Changes a job's MIG instances while it runs, as its runner asks; who: root; one for each job.

    python -m slurm_colloc.host.hooks.instance_agent RUN POLICY JOB SIMULATION NODE <LISTENER

Standard input is the listening socket, which the prolog has made. A request is one line of JSON, at
most REQUEST_MAX_BYTES, and so is the answer:

    {"request": "status", "gpu": "GPU-..."}
    {"request": "change", "gpu": "GPU-...", "destroy": ["MIG-..."], "create": ["3g.40gb"]}

It believes the job's user nothing: who asks is told by the kernel, what may be touched by the
checkpoint, and what stands by NVML. It ends when the checkpoint is no longer `ready`; the epilog
does not wait for that (signals.end_agent).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence

from slurm_colloc.errors import CollocError, NodeError, StateError
from slurm_colloc.host.hooks.checkpoint import READY, SETUP, Checkpoint
from slurm_colloc.host.hooks.node_policy import MIG_OFF, NodePolicy, read_policy
from slurm_colloc.host.hooks.run_directory import RunDirectory
from slurm_colloc.host.mig.change_instances import change_instances
from slurm_colloc.host.mig.cut_gpu import read_one
from slurm_colloc.host.mig.instance_records import describe_instances
from slurm_colloc.host.mig.mig_session import MigSession
from slurm_colloc.host.mig.mig_state import MigClaim, MigGpu
from slurm_colloc.host.system.node_processes import read_boot_id
from slurm_colloc.host.system.signals import act_as_hook
from slurm_colloc.model.printable import cut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

REQUEST_MAX_BYTES = 4096
_REQUEST_S = 2.0
"""How long a request may take to arrive: others wait meanwhile."""

_DRAIN_S = 0.2
_DRAINS_MAX = 16

_CHANGE_S = 30.0
_LOCK_S = 5.0
_LOOK_S = 15.0
"""How often it looks whether its job is still there."""

_MOST_WORDS = 7


def main(argv: Sequence[str]) -> int:
    """Answer until the job is over."""
    act_as_hook()
    os.umask(0o077)
    os.chdir("/")
    _, path, policy, job_id, simulation, node = argv
    run = RunDirectory(path, makes=False)
    with socket.socket(fileno=os.dup(0)) as listener:
        # A client that is gone again must not be waited for.
        listener.setblocking(False)
        agent = InstanceAgent(run, policy, job_id, simulation, node)
        while agent.is_wanted():
            readable, _, _ = select.select([listener], [], [], _LOOK_S)
            if readable:
                with contextlib.suppress(OSError):
                    agent.serve(listener.accept()[0])
    return 0


class InstanceAgent:
    """Answers the requests of one job.

    Args:
        run: Root's directory.
        policy: The policy's path.
        job_id: The job.
        simulation: The directory of a simulated GPU; empty on a real node.
        node: Slurm's name of this node.
    """

    def __init__(
        self, run: RunDirectory, policy: str, job_id: str, simulation: str = "", node: str = ""
    ) -> None:
        self._run = run
        self._policy = policy
        self._job_id = job_id
        self._place = (simulation, node)
        self._before: Checkpoint | None = None

    def is_wanted(self) -> bool:
        """Whether the job is still prepared, or being prepared, in this boot."""
        checkpoint = self._run.read_quietly(self._job_id)
        return (
            checkpoint is not None
            and bool(checkpoint.mig)
            and checkpoint.phase != "undoing"
            and checkpoint.boot == read_boot_id()
        )

    def serve(self, connection: socket.socket) -> None:
        """Answer one client and close its connection."""
        with connection:
            connection.settimeout(_REQUEST_S)
            try:
                checkpoint = self._read_checkpoint()
                if _read_peer_uid(connection) != checkpoint.uid:
                    raise NodeError("only the job's own user is answered")
                answer = self._answer(_receive(connection))
            except CollocError as error:
                answer = {"ok": False, "reason": str(error), "instances": []}
            except (OSError, ValueError) as error:
                answer = {"ok": False, "reason": f"not understood: {error}", "instances": []}
            with contextlib.suppress(OSError):
                connection.settimeout(_REQUEST_S)
                connection.sendall(json.dumps(answer).encode("ascii") + b"\n")
                _drain(connection)

    def _answer(self, data: bytes) -> dict[str, Any]:
        request = parse_request(data)
        try:
            # No hook looks at the job meanwhile; one that wants to end this process does.
            with self._run.locked_job(self._job_id, _LOCK_S):
                return self._act(request)
        except TimeoutError:
            raise NodeError("a hook is at work on this job") from None

    def _act(self, request: InstanceRequest) -> dict[str, Any]:
        checkpoint = self._read_checkpoint()
        if checkpoint.phase != READY:
            raise NodeError("the job is not prepared, or is over")
        claim = next((one for one in checkpoint.mig if one.gpu == request.gpu), None)
        if claim is None:
            raise NodeError("that GPU is none of this job's")
        policy = read_policy(self._policy)
        with MigSession(
            self._run.lock_path,
            {claim.gpu: claim.minor_number},
            simulation=self._place[0],
            node=self._place[1],
            ends_at=time.monotonic() + _CHANGE_S,
        ) as session:
            if not request.is_change:
                gpu = read_one(session, claim.gpu)
                return {"ok": True, "instances": describe_instances(gpu, claim.planned)}
            _check_policy(policy)
            outcome = change_instances(
                session,
                claim,
                destroy=request.destroy,
                create=request.create,
                allowed=policy.mig_profiles,
                save=self._save,
            )
        instances = describe_instances(outcome.gpu, outcome.claim.planned) if outcome.gpu else []
        if outcome.gpu is not None:
            self._tell(outcome.gpu, instances)
        if outcome.problem:
            return {"ok": False, "reason": outcome.problem, "instances": instances}
        return {"ok": True, "instances": instances}

    def _read_checkpoint(self) -> Checkpoint:
        checkpoint = self._run.read_quietly(self._job_id)
        if checkpoint is None:
            raise NodeError("the job is over")
        return checkpoint

    def _save(self, claim: MigClaim) -> None:
        """Write down what is about to stand on a GPU."""
        checkpoint = self._read_checkpoint()
        claims = tuple(claim if one.gpu == claim.gpu else one for one in checkpoint.mig)
        try:
            self._run.write(dataclasses.replace(checkpoint, mig=claims))
        except OSError as error:
            raise StateError(f"the checkpoint cannot be written ({error.strerror})") from error

    def _tell(self, gpu: MigGpu, instances: list[dict[str, Any]]) -> None:
        """Bring setup.json up to date; the answer has the same."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            with open(f"{self._run.path}/{self._job_id}/{SETUP}", encoding="utf-8") as file:
                setup = json.load(file)
            for one in setup["mig"]["gpus"]:
                if one["uuid"] == gpu.uuid:
                    one["instances"] = instances
            self._run.write_setup(self._job_id, setup)


# -- requests, pure -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class InstanceRequest:
    """What a job's runner asks for.

    Args:
        gpu: The UUID of a GPU.
        is_change: Something is to be changed.
        destroy: UUIDs of instances that are to go.
        create: Words of instances that are to come.
    """

    gpu: str
    is_change: bool = False
    destroy: tuple[str, ...] = ()
    create: tuple[str, ...] = ()


def parse_request(data: bytes) -> InstanceRequest:
    """Read one request; pure.

    Raises:
        NodeError: It is none.
    """
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise NodeError("the request is no JSON") from error
    if not isinstance(value, Mapping):
        raise NodeError("the request is no JSON object")
    kind = value.get("request")
    if kind not in ("status", "change"):
        raise NodeError("the request is neither status nor change")
    unknown = set(value) - {"request", "gpu", "destroy", "create"}
    if unknown:
        raise NodeError(f"the request has the unknown key {cut(ascii(min(unknown)))}")
    gpu = value.get("gpu")
    if not isinstance(gpu, str):
        raise NodeError("the request names no gpu")
    return InstanceRequest(
        gpu, kind == "change", _read_words(value, "destroy"), _read_words(value, "create")
    )


def _read_words(value: Mapping[str, Any], key: str) -> tuple[str, ...]:
    words = value.get(key, [])
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise NodeError(f"the request's {key} is no list of texts")
    if len(words) > _MOST_WORDS:
        raise NodeError(f"the request's {key} has more than {_MOST_WORDS} entries")
    return tuple(words)


def _check_policy(policy: NodePolicy) -> None:
    if not policy.enabled or policy.mig == MIG_OFF or not policy.mig_change:
        raise NodeError("the site's policy does not let instances change while a job runs")


def _receive(connection: socket.socket) -> bytes:
    """One line within the limits of length and time."""
    data = b""
    ends_at = time.monotonic() + _REQUEST_S
    while b"\n" not in data:
        if len(data) > REQUEST_MAX_BYTES:
            raise NodeError(f"the request is longer than {REQUEST_MAX_BYTES} bytes")
        connection.settimeout(max(0.001, ends_at - time.monotonic()))
        chunk = connection.recv(REQUEST_MAX_BYTES + 1)
        if not chunk:
            raise NodeError("the request breaks off")
        data += chunk
    line = data.partition(b"\n")[0]
    if len(line) > REQUEST_MAX_BYTES:
        raise NodeError(f"the request is longer than {REQUEST_MAX_BYTES} bytes")
    return line


def _drain(connection: socket.socket) -> None:
    """Take what was sent beyond the request: unread, it would cost the client the answer."""
    connection.shutdown(socket.SHUT_WR)
    ends_at = time.monotonic() + _DRAIN_S
    for _ in range(_DRAINS_MAX):
        connection.settimeout(max(0.001, ends_at - time.monotonic()))
        if not connection.recv(REQUEST_MAX_BYTES):
            break


def _read_peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    return int(struct.unpack("3i", credentials)[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv))
