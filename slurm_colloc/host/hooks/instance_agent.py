"""Changes a job's MIG instances while it runs, as its runner asks; who: root; one for each job.

Also: a request to a job's agent: one line of JSON over a socket, of a user who is believed nothing.

    python -m slurm_colloc.host.hooks.instance_agent RUN POLICY JOB DRIVER NODE <LISTENER

Standard input is the listening socket, which the prolog has made. A request is one line of JSON, at
most 4096 bytes, and so is the answer:

    {"request": "status", "gpu": "GPU-..."}
    {"request": "change", "gpu": "GPU-...", "destroy": ["MIG-..."], "create": ["3g.40gb"]}

It believes the job's user nothing: who asks is told by the kernel, what may be touched by the
checkpoint, and what stands by NVML. It ends when the checkpoint is no longer `ready`; the epilog
does not wait for that (signals.end_agent).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_colloc.errors import CollocError, NodeError, StateError
from slurm_colloc.host.hooks.audit_log import write_audit
from slurm_colloc.host.hooks.hook_job import READY, SETUP, UNDOING, Checkpoint
from slurm_colloc.host.hooks.node_policy import MIG_OFF, NodePolicy, read_policy
from slurm_colloc.host.hooks.run_directory import RunDirectory
from slurm_colloc.host.mig.change_instances import change_instances, describe_instances
from slurm_colloc.host.mig.cut_gpu import read_one
from slurm_colloc.host.mig.mig_session import MigSession
from slurm_colloc.host.mig.plan_cut import MigClaim
from slurm_colloc.host.system.node_processes import read_boot_id
from slurm_colloc.host.system.signals import act_as_hook
from slurm_colloc.model.printable import cut

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# ----
# A request to a job's agent: one line of JSON over a socket, of a user who is believed nothing.
#
# Who: root's agent. Reading it is pure.

REQUEST_MAX_BYTES = 4096
REQUEST_S = 2.0
"""How long a request may take to arrive: others wait meanwhile."""

_DRAIN_S = 0.2
_DRAINS_MAX = 16
_MOST_WORDS = 7


@dataclass(frozen=True)
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
        raise NodeError("the request is not JSON") from error
    if not isinstance(value, Mapping):
        raise NodeError("the request is not a JSON object")
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
        raise NodeError(f"the request's {key} is not a list of texts")
    if len(words) > _MOST_WORDS:
        raise NodeError(f"the request's {key} has more than {_MOST_WORDS} entries")
    return tuple(words)


def receive(connection: socket.socket) -> bytes:
    """One line within the limits of length and time.

    Raises:
        NodeError: It is too long, or breaks off.
        OSError: It did not come in time.
    """
    data = b""
    ends_at = time.monotonic() + REQUEST_S
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


def drain(connection: socket.socket) -> None:
    """Take what was sent beyond the request: unread, it would cost the client the answer."""
    connection.shutdown(socket.SHUT_WR)
    ends_at = time.monotonic() + _DRAIN_S
    for _ in range(_DRAINS_MAX):
        connection.settimeout(max(0.001, ends_at - time.monotonic()))
        if not connection.recv(REQUEST_MAX_BYTES):
            break


# ----
# Changes a job's MIG instances while it runs, as its runner asks; who: root; one for each job.

_CHANGE_S = 30.0
_CHANGES_MAX = 30
_CHANGES_WITHIN_S = 60.0
"""A job asks for so many changes in that time; on hardware each of them takes seconds."""

_LOCK_S = 5.0
_LOOK_S = 15.0
"""How often it looks whether its job is still there."""


def main(argv: Sequence[str]) -> int:
    """Answer until the job is over."""
    act_as_hook()
    os.umask(0o077)
    os.chdir("/")
    _, path, policy, job_id, driver, node = argv
    run = RunDirectory(path, makes=False)
    with socket.socket(fileno=os.dup(0)) as listener:
        # A client that is gone again must not be waited for.
        listener.setblocking(False)
        agent = InstanceAgent(run, policy, job_id, driver, node)
        while agent.is_wanted():
            readable, _, _ = select.select([listener], [], [], _LOOK_S)
            if readable:
                with contextlib.suppress(OSError):
                    agent.serve(listener.accept()[0])
    return 0


@dataclass(eq=False)
class InstanceAgent:
    """Answers the requests of one job.

    Attributes:
        run: Root's directory.
        policy: The policy's path.
        job_id: The job.
        driver: NVIDIA's lib and bin where they are not the system's own; else empty.
        node: Slurm's name of this node.
    """

    run: RunDirectory
    policy: str
    job_id: str
    driver: str = ""
    node: str = ""

    def __post_init__(self) -> None:
        self._place = (self.driver, self.node)
        self._changes: deque[float] = deque(maxlen=_CHANGES_MAX)

    def is_wanted(self) -> bool:
        """Whether the job is still prepared, or being prepared, in this boot."""
        checkpoint = self.run.read_quietly(self.job_id)
        return (
            checkpoint is not None
            and bool(checkpoint.mig)
            and checkpoint.phase != UNDOING
            and checkpoint.boot == read_boot_id()
        )

    def serve(self, connection: socket.socket) -> None:
        """Answer one client and close its connection."""
        with connection:
            connection.settimeout(REQUEST_S)
            try:
                checkpoint = self._read_checkpoint()
                if _read_peer_uid(connection) != checkpoint.uid:
                    raise NodeError("only the job's own user is answered")
                answer = self._answer(receive(connection))
            except CollocError as error:
                answer = {"ok": False, "reason": str(error), "instances": []}
            except (OSError, ValueError) as error:
                answer = {"ok": False, "reason": f"not understood: {error}", "instances": []}
            with contextlib.suppress(OSError):
                connection.settimeout(REQUEST_S)
                connection.sendall(json.dumps(answer).encode("ascii") + b"\n")
                drain(connection)

    def _answer(self, data: bytes) -> dict[str, Any]:
        request = parse_request(data)
        try:
            # No hook looks at the job meanwhile; one that wants to end this process does.
            with self.run.locked_job(self.job_id, _LOCK_S):
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
        policy = read_policy(self.policy)
        with MigSession(
            self.run.lock_path,
            {claim.gpu: claim.minor_number},
            driver=self._place[0],
            node=self._place[1],
            ends_at=time.monotonic() + _CHANGE_S,
        ) as session:
            if not request.is_change:
                gpu = read_one(session, claim.gpu)
                return {"ok": True, "instances": describe_instances(gpu, claim.planned)}
            _check_policy(policy)
            self._check_rate()
            began, told = time.monotonic(), "it broke off"
            try:
                outcome = change_instances(
                    session,
                    claim,
                    destroy=request.destroy,
                    create=request.create,
                    allowed=policy.mig_profiles,
                    save=self._save,
                )
                told = outcome.problem
            except CollocError as error:
                told = str(error)
                raise
            finally:
                self._audit(policy, checkpoint, request, told, began)
        instances = describe_instances(outcome.gpu, outcome.claim.planned) if outcome.gpu else None
        # What is not known is offered to no member that starts.
        self._tell(claim.gpu, instances or [])
        if outcome.problem:
            return {"ok": False, "reason": outcome.problem, "instances": instances}
        return {"ok": True, "instances": instances}

    def _check_rate(self) -> None:
        now = time.monotonic()
        if len(self._changes) == _CHANGES_MAX and now - self._changes[0] < _CHANGES_WITHIN_S:
            raise NodeError(
                f"the job has asked for {_CHANGES_MAX} changes within {_CHANGES_WITHIN_S:.0f} s: "
                f"it may ask again later"
            )
        self._changes.append(now)

    def _audit(
        self,
        policy: NodePolicy,
        checkpoint: Checkpoint,
        request: InstanceRequest,
        problem: str,
        began: float,
    ) -> None:
        """One line for each change that was tried; the words are the user's, and bounded."""
        entry = {
            "hook": "agent",
            "job": checkpoint.job_id,
            "uid": checkpoint.uid,
            "node": self._place[1],
            "mode": checkpoint.mode,
            "action": "none" if problem else "changed",
            "outcome": problem,
            "ms": round((time.monotonic() - began) * 1000, 1),
            "gpu": request.gpu,
            "destroy": list(request.destroy),
            "create": list(request.create),
        }
        write_audit(policy.audit_log, entry)

    def _read_checkpoint(self) -> Checkpoint:
        checkpoint = self.run.read_quietly(self.job_id)
        if checkpoint is None:
            raise NodeError("the job is over")
        return checkpoint

    def _save(self, claim: MigClaim) -> None:
        """Write down what is about to stand on a GPU."""
        checkpoint = self._read_checkpoint()
        claims = tuple(claim if one.gpu == claim.gpu else one for one in checkpoint.mig)
        try:
            self.run.write(replace(checkpoint, mig=claims))
        except OSError as error:
            raise StateError(f"the checkpoint cannot be written ({error.strerror})") from error

    def _tell(self, gpu: str, instances: list[dict[str, Any]]) -> None:
        """Bring setup.json up to date; the answer has the same."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            with open(f"{self.run.path}/{self.job_id}/{SETUP}", encoding="utf-8") as file:
                setup = json.load(file)
            for one in setup["mig"]["gpus"]:
                if one["uuid"] == gpu:
                    one["instances"] = instances
            self.run.write_setup(self.job_id, setup)


def _check_policy(policy: NodePolicy) -> None:
    if not policy.enabled or policy.mig == MIG_OFF or not policy.mig_change:
        raise NodeError("the site's policy does not let instances change while a job runs")


def _read_peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    return int(struct.unpack("3i", credentials)[1])


if __name__ == "__main__":
    sys.exit(main(sys.argv))
