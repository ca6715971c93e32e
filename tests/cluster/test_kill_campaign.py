"""Kills at random moments over packs that pause, park and take members over.

Runner, guard, wrapper, slurmd and slurmctld are killed, and runners hang. Whatever happens each
member ends once, and none stays stopped. How much is asked for:

    SLURM_COLLOC_CAMPAIGN_PACKS=100 SLURM_COLLOC_CAMPAIGN_SEED=7 \\
        pytest -s tests/cluster/test_kill_campaign.py
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from slurm_colloc.host.system.node_processes import (
    ProcessId,
    identify,
    is_alive,
    list_processes,
    read_process,
    read_uid,
)
from slurm_colloc.model.member import ExitRecord
from slurm_colloc.runtime.pause_members import list_wrappers
from slurm_colloc.runtime.programs.pause_lease import LEASE_S
from slurm_colloc.store.member_states import read_attempt, read_pauses, read_state
from slurm_colloc.store.pack_directory import read_spec
from slurm_colloc.store.written_ends import read_runner
from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, administrate, running_sandbox, user_of
from ..wait_until import wait_until
from .mps import read_parent, write_settings

pytestmark = [pytest.mark.slurm, pytest.mark.long, pytest.mark.timeout(7200)]

CHECKOUT = Path(__file__).parents[2]
PACKS = int(os.environ.get("SLURM_COLLOC_CAMPAIGN_PACKS", "6"))
SEED = int(os.environ.get("SLURM_COLLOC_CAMPAIGN_SEED", "20261127"))
PACK_SIZE = 4
KILLS_OF_RUNNER_MOST = 2
"""A pack whose runner is killed more often is not started again."""

FORGETS_S = 30.0
"""How old may be what a controller that is killed has not saved yet."""

OPTIONS = ("--share=timeslice", "--gres=gpu:1", "-c1", "--mem=30M", "--time=20", "--requeue")

# The runner, in which room for more was measured and which pauses and parks at random; where a
# layer is named, on a file system that fails now and then and is read-only for a while.
_LAUNCHER = """\
#!{python}
import os, random, sys
chance = random.Random({seed} * 1000003 + os.getpid())
if {layer!r} and "SOFT_ROOT" not in os.environ:
    os.environ.update(
        LD_PRELOAD={layer!r}, SOFT_ROOT={root!r}, SOFT_MARK=os.path.abspath(__file__),
        SOFT_SEED=str(chance.randrange(1000000)), SOFT_RATE=str(chance.randrange(30)),
    )
    if chance.random() < 0.3:
        os.environ["SOFT_READ_ONLY"] = "%.1f:30" % chance.uniform(0, 10)
    os.execv(sys.executable, [sys.executable, os.path.abspath(__file__), *sys.argv[1:]])
sys.path.insert(0, {checkout!r})
from tests.random_pauses import pause_at_random
pause_at_random(chance.randrange(1000000), room=6)
from slurm_colloc.runtime import __main__ as entry
sys.exit(entry.main(sys.argv[4:]))
"""

# It answers a TERM as after a checkpoint, and works on small steps: paused ones make none.
_MEMBER = """
key="$1.$SLURM_ARRAY_TASK_ID"
echo "start ${SLURM_COLLOC_PACK##*/}" >>"runs/$key"
trap 'echo saved >>"runs/$key"; exit 0' TERM
for step in $(seq $((20 + RANDOM % 120))); do sleep 0.1; done
echo end >>"runs/$key"
exit $((SLURM_ARRAY_TASK_ID % 4 == 0 ? 3 : 0))
"""


@dataclass
class Campaign:
    """What is done to the packs of a user, and what may follow.

    Attributes:
        user: Whose packs.
        chance: What is drawn.
        done: How often each thing was done.
        kills: How often each pack's runner was killed.
        may_be_lost: Packs of which members may be lost: without their guard nothing asks for
            another start, and a controller that is killed forgets what it did last.
        hanging: Runners that hang, with when they are looked at.
        log: What was done, for a failing test.
    """

    user: CsubUser
    chance: random.Random
    done: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    may_be_lost: set[str] = field(default_factory=set)
    hanging: list[tuple[ProcessId, Path, float]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    @property
    def sandbox(self) -> Sandbox:
        """The cluster."""
        return self.user.sandbox

    def list_running(self) -> list[tuple[Path, ProcessId]]:
        """The packs whose runner lives."""
        hung = {process for process, _, _ in self.hanging}
        found = []
        for pack in sorted((self.user.state / "packs").glob("*")):
            runner = read_runner(pack)
            if runner is None:
                continue
            process = identify(runner.pid)
            is_it = process is not None and process.start_ticks == runner.start_ticks
            if process is not None and is_it and process not in hung and is_alive(process):
                found.append((pack, process))
        return found

    def step(self) -> None:
        """Do one thing."""
        self._look_at_hanging()
        running = self.list_running()
        acts = ["controller", "slurmd"]
        if running:
            acts += ["runner"] * 2 + ["wrapper"] * 2 + ["guard"] + ["hang"] * 2
        act = self.chance.choice(acts)
        if act == "controller":
            self._restart_controller()
        elif act == "slurmd":
            name = self.chance.choice(self.sandbox.node_names)
            self._note(act, name)
            self.sandbox.kill_node(name)
            time.sleep(self.chance.uniform(0.0, 2.0))
            self.sandbox.start_node(name)
        else:
            pack, runner = self.chance.choice(running)
            if not self._hit(act, pack, runner):
                return
        self.done[act] += 1

    def _note(self, act: str, name: str) -> None:
        self.log.append(f"{time.time():.3f} {act} {name}")

    def _hit(self, act: str, pack: Path, runner: ProcessId) -> bool:
        self._note(act, f"{pack.name} (runner {runner.pid})")
        if act == "wrapper":
            wrappers = list_wrappers(str(pack))
            return bool(wrappers) and send(self.chance.choice(wrappers).id, signal.SIGKILL)
        if act == "guard":
            guard = identify(read_parent(runner.pid))
            self.may_be_lost.add(pack.name)
            return guard is not None and send(guard, signal.SIGKILL)
        if self.kills[pack.name] >= KILLS_OF_RUNNER_MOST:
            return False
        self.kills[pack.name] += 1
        if act == "runner":
            return send(runner, signal.SIGKILL)
        if not send(runner, signal.SIGSTOP):
            return False
        self.hanging.append((runner, pack, time.monotonic() + LEASE_S + 5))
        return True

    def _restart_controller(self) -> None:
        self._note("controller", "away")
        if self.chance.random() < 0.5:
            self.may_be_lost |= {pack.name for pack, _ in self.list_running()}
            self.may_be_lost |= self._list_changed()
            (pid,) = [d.pid for d in self.sandbox.status().daemons if d.name == "slurmctld"]
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: identify(pid) is None, "slurmctld is gone")
        else:
            self.sandbox.stop_controller()
        # A runner that dies meanwhile has nobody to ask.
        for pack, runner in self.list_running()[:1]:
            if self.chance.random() < 0.5 and self._hit("runner", pack, runner):
                self.done["runner without controller"] += 1
        time.sleep(self.chance.uniform(0.0, 8.0))
        self.sandbox.start_controller()
        self._note("controller", "there")

    def _list_changed(self) -> set[str]:
        """Packs just submitted, started or requeued: slurmctld saves that seconds later."""
        names = ("slurm_job_id", "attempt", "killed.*")
        since = time.time() - FORGETS_S
        files = [f for name in names for f in (self.user.state / "packs").glob(f"*/{name}")]
        return {file.parent.name for file in files if file.stat().st_mtime > since}

    def _look_at_hanging(self, *, waits: bool = False) -> None:
        """Of a pack whose runner hangs none is stopped any more; then it goes on or is killed."""
        for entry in list(self.hanging):
            runner, pack, due = entry
            if waits:
                time.sleep(max(0.0, due - time.monotonic()))
            if time.monotonic() < due and is_alive(runner):
                continue
            if is_stopped(runner):
                wait_until(
                    lambda pack=pack: not list_stopped(self.user, pack),  # type: ignore[misc]
                    f"what the runner of {pack.name}, which hangs, had paused goes on",
                )
            self.hanging.remove(entry)
            number = self.chance.choice((signal.SIGKILL, signal.SIGCONT))
            self._note(number.name, f"{pack.name} (runner {runner.pid})")
            send(runner, number)

    def end(self) -> None:
        """Let the rest come to its end."""
        self._look_at_hanging(waits=True)
        self.sandbox.start_controller()
        # A batch script whose end a controller was too busy dying to hear of is missed by it only
        # once the node registers again.
        for name in self.sandbox.node_names:
            self.sandbox.kill_node(name)
            self.sandbox.start_node(name)


def send(process: ProcessId, number: int) -> bool:
    """Send a signal to this very process; False where it is gone."""
    if identify(process.pid) != process:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, number)
        return True
    return False


def is_stopped(process: ProcessId) -> bool:
    found = read_process(process.pid)
    return found is not None and found.id == process and found.state == "T"


def list_stopped(user: CsubUser, pack: Path | None = None) -> list[str]:
    """The user's processes that are stopped, or those of one pack's members."""
    found = []
    for process in list_processes():
        pid = process.id.pid
        if process.state != "T" or read_uid(pid) != user.uid:
            continue
        with contextlib.suppress(OSError):
            block = Path(f"/proc/{pid}/environ").read_bytes()
            is_member = b"SLURM_COLLOC_START=" in block
            if pack is None or (is_member and os.fsencode(f"SLURM_COLLOC_PACK={pack}\0") in block):
                found.append(f"{pid} {process.name}")
    return found


def submit(user: CsubUser, layer: str) -> list[str]:
    """Submit arrays of several packs each; their ids."""
    launcher = user.home / "runner.py"
    values = {"python": sys.executable, "seed": SEED, "layer": layer, "checkout": str(CHECKOUT)}
    launcher.write_text(_LAUNCHER.format(root=str(user.state), **values))
    launcher.chmod(0o755)
    write_settings(user, node_python=str(launcher))
    (user.home / "runs").mkdir()
    os.chown(user.home / "runs", user.uid, user.gid)
    user.script("work.sh", _MEMBER)
    jobs: list[str] = []
    left = PACKS
    while left > 0:
        size = min(4, left)
        word = f"array{len(jobs)}"
        words = (f"--degree={PACK_SIZE}", f"--array=1-{size * PACK_SIZE}", "work.sh", word)
        jobs.append(user.submit(*OPTIONS, *words))
        left -= size
    return jobs


def has_ended(user: CsubUser) -> bool:
    """Whether no member is open any more; what was never started is submitted again."""
    listed = user.csub("queue", "--json", check=False).stdout
    # Slurm holds a job whose batch script a killed slurmd could not start, until it is released.
    rows = json.loads(listed) if listed else []
    held = [row["member"] for row in rows if (row["reason"] or "").startswith("launch failed")]
    if held:
        user.csub("release", *held, check=False)
    resume_nodes(user)
    return not list((user.state / "open").iterdir())


def resume_nodes(user: CsubUser) -> None:
    """Slurm drains a node for an administrator where a launch failed for no fault of the job's.

    A controller that was killed gives ids again that it has forgotten, and a node that still runs a
    job of such an id refuses the new one.
    """
    told = user.run(["sinfo", "-h", "-N", "-o%N %T %E"], check=False).stdout
    for line in sorted(set(told.splitlines())):
        node, state, reason = line.split(maxsplit=2)
        if state.startswith("drain"):
            print(f"resumed {node}: {reason}")
            administrate(
                user, "scontrol", "update", f"nodename={node}", "state=resume", check=False
            )


def list_places(user: CsubUser) -> dict[str, list[tuple[Path, int]]]:
    """Where each member is or was, by what it is told and its task: it may be submitted again."""
    found: dict[str, list[tuple[Path, int]]] = {}
    for pack in sorted((user.state / "packs").glob("*")):
        for folder in sorted(pack.glob("members/*")):
            if not (folder / "spec.json").exists():
                continue
            job = read_spec(pack, int(folder.name)).job
            assert job.array_task is not None
            key = f"{job.arguments[0]}.{job.array_task.task_id}"
            found.setdefault(key, []).append((pack, int(folder.name)))
    return found


def check_member(user: CsubUser, key: str, places: list[tuple[Path, int]], lost: set[str]) -> str:
    """It has ended once; its state."""
    runs = user.output(f"runs/{key}").split("\n")
    states = []
    own_ends = 0
    for pack, number in places:
        folder = pack / "members" / f"{number:04d}"
        record = read_state(pack, number, read_attempt(pack))
        if (folder / "moved.json").exists():
            assert record is None or not record.starts, (key, record)
            continue
        exits = {
            int(path.name.split(".")[2]): ExitRecord.parse(json.loads(path.read_text()))
            for path in folder.glob("run.*.exit")
        }
        own = [start for start, written in exits.items() if written.is_its_own]
        own_ends += len(own)
        starts = [int(path.name.split(".")[2]) for path in folder.glob("run.*.started")]
        if own:
            # Nothing came after it, and it counts as it ended.
            assert own == [max(starts)], (key, runs, sorted(starts), exits)
            assert record is not None
            assert record.is_final, (key, record)
            assert record.exit_code == exits[own[0]].code, (key, record)
            assert record.state == exits[own[0]].state, (key, record)
            states.append(record.state.value)
        elif record is not None and record.is_final:
            states.append(record.state.value)
        else:
            assert pack.name in lost, (key, record, runs)
            states.append("LOST")
    assert len(states) == 1, (key, places, states)
    assert own_ends <= 1, (key, runs)
    return states[0]


@pytest.fixture
def soft_layer() -> Iterator[str]:
    """The layer of a file system that fails, where every user can load it."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        source, library = CHECKOUT / "tests" / "runtime" / "soft_file_system.c", f"{folder}/soft.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        yield library


def test_each_member_ends_once_and_none_stays_stopped(accounts: tuple[str, ...]) -> None:
    run_campaign(accounts[0])


def test_so_it_is_on_a_file_system_that_fails(accounts: tuple[str, ...], soft_layer: str) -> None:
    run_campaign(accounts[0], soft_layer)


def run_campaign(account: str, layer: str = "") -> None:
    """Submit, kill, and see what became of each member."""
    print(f"SLURM_COLLOC_CAMPAIGN_SEED={SEED} SLURM_COLLOC_CAMPAIGN_PACKS={PACKS}")
    with (
        # Few GPUs: packs wait, and those that run take members over from them.
        running_sandbox(nodes=2, gpus_per_node=1, cpus_per_node=32) as sandbox,
        user_of(sandbox, account) as user,
    ):
        jobs = submit(user, layer)
        campaign = Campaign(user, random.Random(SEED))
        try:
            steps = 3 * PACKS
            while steps and not has_ended(user):
                steps -= 1
                time.sleep(campaign.chance.uniform(0.1, 1.5))
                campaign.step()
            campaign.end()
            patience_s = 300.0 + 10.0 * PACKS
            wait_until(lambda: has_ended(user), "all packs have ended", patience_s=patience_s)
            wait_until(lambda: not list_stopped(user), "none is stopped")
            places = list_places(user)
            assert len(places) == PACKS * PACK_SIZE
            found = Counter(
                check_member(user, key, where, campaign.may_be_lost)
                for key, where in places.items()
            )
        except BaseException as error:
            error.add_note(f"seed {SEED}; done: {dict(campaign.done)}")
            error.add_note("\n".join(campaign.log))
            error.add_note(f"stopped: {list_stopped(user)}")
            error.add_note(user.run(["sinfo", "-N", "-o%N %T %E"], check=False).stdout)
            for job_id in jobs:
                error.add_note(user.describe(job_id))
            raise
        packs = list((user.state / "packs").glob("*"))
        pauses = [pause for pack in packs for pause in read_pauses(pack)]
        told = [(pack / "events.jsonl") for pack in packs]
        takers = sum(path.exists() and '"took_over"' in path.read_text() for path in told)
        print(
            f"done: {dict(campaign.done)}; states: {dict(found)}; pauses: {len(pauses)}; "
            f"packs that took members over: {takers}"
        )
        assert {pause.reason for pause in pauses} == {"measured", "parked"}
