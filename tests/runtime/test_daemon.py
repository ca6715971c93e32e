"""What a pack makes of the events of its MPS daemon."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.host.keeper import keeper_messages as keepers
from slurm_colloc.host.keeper.prepared_daemon import PreparedDaemon
from slurm_colloc.host.mps.mps_state import StopReport
from slurm_colloc.model.late_definitions import replace
from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime import pack_daemon as module
from slurm_colloc.runtime.guarded_steps import Journal
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.mps_clients import MpsClients
from slurm_colloc.runtime.pack_daemon import DAEMONS_MAX, PackDaemon
from slurm_colloc.runtime.settled_mode import GpuPatience
from slurm_colloc.store.member_states import StateRecord

from .pack_contexts import build_context
from .test_members import SPEC

UUID = "GPU-5a41ce45-e82a-a159-ec6f-fe593e0e1c21"
CONTROL = keepers.ControlProved("/tmp/csubm-1", "/tmp/csubm-1/p", 7, 19.0, ("/dev/shm: no room",))
READY = keepers.Ready("/tmp/csubm-1", "/tmp/csubm-1/p", 7, 9, "13.0", 19.0, 280.0)
STOPPED = keepers.Stopped(StopReport(105.0, directory_removed=True))
RECOVERED = StopReport(20.0, forced=True, directory_removed=True)


class FakeKeeper:
    """Says what a test gives it to say, and notes what it is asked for."""

    made: list[FakeKeeper]

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.asked: list[str] = []
        self.last: list[Any] = [STOPPED]
        self.is_alive = True
        self.ends = True
        self.options: Any = None

    @classmethod
    def start(cls, options: Any, *, log: int) -> FakeKeeper:
        assert options.gpus == (UUID,)
        assert log == 2
        cls.made.append(cls())
        cls.made[-1].options = options
        return cls.made[-1]

    def fileno(self) -> int:
        return 0

    def poll(self) -> list[Any]:
        events, self.events = self.events, []
        return events

    def wait(self, _deadline: float) -> list[Any]:
        self.is_alive = not self.ends
        return self.last if self.ends else []

    def recover(self) -> StopReport:
        self.asked.append("recover")
        return RECOVERED

    def __getattr__(self, name: str) -> Any:
        if name in ("restart", "stop", "abandon", "ask_status", "kill"):
            return lambda: self.asked.append(name)
        raise AttributeError(name)


class Told:
    """Notes what the daemon's listener is told."""

    def __init__(self) -> None:
        self.words: list[Any] = []

    def note_control(
        self, pipe_directory: str, control_ms: float, restarts: int, notes: tuple[str, ...]
    ) -> None:
        self.words.append(("control", pipe_directory, control_ms, restarts, notes))

    def note_ready(self, active_ms: float | None) -> None:
        self.words.append(("ready", active_ms))

    def note_unprepared(self, reason: str) -> None:
        self.words.append(("unprepared", reason))

    def note_lost(self) -> None:
        self.words.append("lost")

    def note_given_up(self, reason: str) -> None:
        self.words.append(("given up", reason))

    def note_stopped(self, report: StopReport) -> None:
        self.words.append(("stopped", report.elapsed_ms))

    def take(self) -> list[Any]:
        words, self.words = self.words, []
        return words


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def daemon(tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> PackDaemon:
    FakeKeeper.made = []
    monkeypatch.setattr(module, "KeeperClient", FakeKeeper)
    patience = GpuPatience(fault_grace_s=0.05, mend_s=0.05, status_s=0.05)
    return PackDaemon(
        pack=build_context(tmp_path),
        gpus=(UUID,),
        clients=MpsClients(tmp_path, Journal(tmp_path), patience),
        listener=told,
        patience=patience,
    )


def say(daemon: PackDaemon, *events: Any) -> FakeKeeper:
    """Let the newest keeper say something, and the daemon hear it."""
    keeper = FakeKeeper.made[-1]
    keeper.events += events
    daemon.work()
    return keeper


def test_a_daemon_comes_up_and_is_ended(daemon: PackDaemon, told: Told) -> None:
    daemon.start()
    keeper = say(daemon, CONTROL, READY)
    assert told.take() == [
        ("control", "/tmp/csubm-1/p", 19.0, 0, ("not used: /dev/shm: no room",)),
        ("ready", 280.0),
    ]
    daemon.close()
    assert keeper.asked == ["stop"]
    assert told.take() == [("stopped", 105.0)]
    daemon.close()
    assert told.take() == []


def test_a_daemon_that_does_not_come_up_is_given_up(daemon: PackDaemon, told: Told) -> None:
    daemon.start()
    say(daemon, CONTROL, keepers.Failed("the MPS server cannot start"))
    assert told.take()[1:] == [("given up", "the MPS server cannot start")]
    assert daemon.filenos() == []
    daemon.close()


def test_a_keeper_that_cannot_be_started_is_no_more_than_that(
    daemon: PackDaemon, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> FakeKeeper:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(FakeKeeper, "start", refuse)
    daemon.start()
    assert told.take() == [
        ("given up", "the MPS keeper cannot be started: Resource temporarily unavailable")
    ]


def test_a_daemon_that_dies_is_started_again_until_it_is_enough(
    daemon: PackDaemon, told: Told
) -> None:
    daemon.start()
    for restarts in range(DAEMONS_MAX):
        keeper = say(daemon, CONTROL, READY)
        assert told.take()[0][3] == restarts
        say(daemon, keepers.DaemonDied(-9))
        assert told.take()[0] == "lost"
    assert keeper.asked == ["restart"] * (DAEMONS_MAX - 1) + ["stop"]
    assert daemon.filenos() == []


def test_the_last_death_is_told_with_all_of_them(daemon: PackDaemon, told: Told) -> None:
    daemon.start()
    for _ in range(DAEMONS_MAX):
        say(daemon, keepers.DaemonDied(-9))
    assert told.take()[-2:] == [
        ("stopped", 105.0),
        ("given up", f"the MPS daemon has died, {DAEMONS_MAX} times"),
    ]


def test_for_a_killed_keeper_its_daemon_is_ended_and_another_started(
    daemon: PackDaemon, told: Told
) -> None:
    daemon.start()
    first = say(daemon, CONTROL, READY)
    told.take()
    say(daemon, keepers.KeeperDied(-9))
    assert first.asked == ["recover"]
    assert told.take() == ["lost", ("stopped", RECOVERED.elapsed_ms)]
    assert len(FakeKeeper.made) == 2
    say(daemon, CONTROL)
    assert told.take()[0][:4] == ("control", "/tmp/csubm-1/p", 19.0, 1)
    for _ in range(DAEMONS_MAX - 1):
        say(daemon, keepers.KeeperDied(-9))
    assert len(FakeKeeper.made) == DAEMONS_MAX
    assert told.take()[-1] == (
        "given up",
        f"the MPS daemon's keeper was killed, {DAEMONS_MAX} times",
    )


@pytest.mark.parametrize(
    "last",
    [STOPPED, keepers.DaemonDied(-9), keepers.KeeperDied(-9)],
    ids=lambda e: type(e).__name__,
)
def test_what_was_let_go_is_not_started_again(daemon: PackDaemon, told: Told, last: Any) -> None:
    daemon.start()
    keeper = say(daemon, CONTROL, READY)
    told.take()
    daemon.let_go()
    daemon.let_go()
    assert keeper.asked == ["abandon"]
    say(daemon, last)
    assert len(FakeKeeper.made) == 1
    assert "restart" not in keeper.asked
    assert not any(isinstance(word, tuple) and word[0] == "given up" for word in told.take())
    daemon.close()
    assert "stop" not in keeper.asked


def test_what_ends_once_the_daemon_is_let_go_is_the_end_of_the_pack(daemon: PackDaemon) -> None:
    member = Member(1, SPEC, StateRecord(MemberState.RUNNING, 1))
    member.wrapper_pid = os.getpid()
    assert isinstance(daemon.clients, MpsClients)
    daemon.clients.watch(member)
    daemon.start()
    say(daemon, CONTROL, READY, keepers.ClientJoined(os.getpid(), 9))
    seen = daemon.clients.get(1)
    assert seen is not None
    assert seen.contexts == {os.getpid()}
    daemon.let_go()
    say(daemon, keepers.ServerStatus(9, "EXITED"), keepers.DaemonDied(-9))
    assert (seen.lost, seen.broken) == ("", "")


def test_a_client_that_leaves_has_lost_nothing_when_the_server_is_ended_later(
    daemon: PackDaemon,
) -> None:
    member = Member(1, SPEC, StateRecord(MemberState.RUNNING, 1))
    member.wrapper_pid = os.getpid()
    assert isinstance(daemon.clients, MpsClients)
    daemon.clients.watch(member)
    daemon.start()
    pid = os.getpid()
    say(daemon, CONTROL, READY, keepers.ClientJoined(pid, 9), keepers.ClientLeft(pid, 9))
    say(daemon, keepers.ServerStatus(9, "EXITED"))
    seen = daemon.clients.get(1)
    assert seen is not None
    assert (seen.lost, seen.broken) == ("the MPS server has ended", "")
    say(daemon, keepers.ClientJoined(pid, 10), keepers.ServerStatus(10, "EXITED"))
    assert seen.broken == "the MPS server has ended"


def test_a_keeper_that_does_not_end_is_killed_and_its_work_done(
    daemon: PackDaemon, told: Told
) -> None:
    daemon.start()
    keeper = say(daemon, CONTROL, READY)
    told.take()
    keeper.ends = False
    daemon.close()
    assert keeper.asked == ["stop", "kill", "recover"]
    assert told.take() == [("stopped", RECOVERED.elapsed_ms)]


def is_mending(daemon: PackDaemon) -> bool:
    return daemon.is_mending


def test_after_a_fault_the_server_takes_nobody_until_it_is_mended(daemon: PackDaemon) -> None:
    daemon.start()
    say(daemon, CONTROL, READY)
    assert not is_mending(daemon)
    say(daemon, keepers.ServerStatus(9, "FAULT"))
    assert is_mending(daemon)
    say(daemon, keepers.ServerStatus(9, "ACTIVE"))
    assert not is_mending(daemon)
    # A log without that line: nobody is left of those whom it hit.
    say(daemon, keepers.ServerStatus(9, "FAULT"))
    deadline = time.monotonic() + 60
    while is_mending(daemon):
        assert time.monotonic() < deadline
    assert daemon.list_stuck() == []
    say(daemon, keepers.ServerStatus(9, "FAULT"), keepers.ServerStatus(9, "EXITED"))
    assert not is_mending(daemon)


def test_catching_up_does_not_wait_for_a_daemon_that_says_nothing(daemon: PackDaemon) -> None:
    daemon.catch_up()
    daemon.start()
    keeper = say(daemon, CONTROL, READY)
    daemon.catch_up()
    assert keeper.asked == ["ask_status"]
    keeper.events.append(keepers.Status(()))
    daemon.catch_up()
    assert keeper.asked == ["ask_status"] * 2


def test_what_the_daemon_complains_of_stands_in_the_pack_s_log(
    daemon: PackDaemon, tmp_path: Path
) -> None:
    daemon.start()
    say(
        daemon,
        keepers.DaemonTrouble(7, "x" * 1000),
        keepers.Sweeping("/tmp/csubm-2", "4710", None, "its daemon still serves clients"),
        keepers.ClientLeft(3, 2),
    )
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    trouble, swept = (json.loads(line) for line in lines)
    assert (trouble["event"], trouble["text"]) == ("mps_trouble", "x" * 500)
    assert (swept["event"], swept["path"], swept["of"]) == ("mps_swept", "/tmp/csubm-2", "4710")


# -- a daemon that the node's prolog has started ---------------------------------------------------


PIPE = "/run/slurm_colloc/4711/0/p"
PREPARED = keepers.ControlProved("/run/slurm_colloc/4711/0", PIPE, 7, 0.0)


@pytest.fixture
def prepared(tmp_path: Path, told: Told, monkeypatch: pytest.MonkeyPatch) -> PackDaemon:
    FakeKeeper.made = []
    monkeypatch.setattr(module, "KeeperClient", FakeKeeper)
    patience = GpuPatience(fault_grace_s=0.05, mend_s=0.05, status_s=0.05)
    daemon = PackDaemon(
        pack=build_context(tmp_path),
        gpus=(UUID,),
        clients=MpsClients(tmp_path, Journal(tmp_path), patience),
        listener=told,
        patience=patience,
        prepared=PreparedDaemon((UUID,), PIPE, 18.5),
    )
    daemon.start()
    return daemon


def test_the_nodes_daemon_is_watched_and_left_to_the_epilog(
    prepared: PackDaemon, told: Told
) -> None:
    assert FakeKeeper.made[-1].options.adopt == PIPE
    say(prepared, PREPARED, READY)
    assert told.take()[0] == ("control", PIPE, 18.5, 0, ())
    assert prepared.by == "prolog"
    prepared.close()
    # Nobody is told of an end: it goes on until the epilog.
    assert told.take() == []
    assert FakeKeeper.made[-1].asked == ["stop"]


def test_in_place_of_a_node_daemon_that_does_not_answer_the_pack_starts_its_own(
    prepared: PackDaemon, told: Told
) -> None:
    say(prepared, keepers.Failed("the node's MPS daemon does not answer: no answer within 3 s"))
    [(word, reason)] = told.take()
    assert (word, reason.partition(":")[0]) == (
        "unprepared",
        "the node's MPS daemon does not answer",
    )
    assert len(FakeKeeper.made) == 2
    assert FakeKeeper.made[-1].options.adopt == ""
    say(prepared, CONTROL, READY)
    assert prepared.by == "runner"
    prepared.close()
    assert told.take()[-1] == ("stopped", 105.0)


def test_the_nodes_dead_daemon_is_replaced_by_the_packs_own(
    prepared: PackDaemon, told: Told
) -> None:
    say(prepared, PREPARED, READY)
    told.take()
    keeper = say(prepared, keepers.DaemonDied(None))
    assert told.take() == ["lost", ("unprepared", "it has died")]
    assert keeper.asked == ["restart"]
    assert prepared.by == "runner"


def test_a_killed_watcher_of_the_nodes_daemon_is_replaced(prepared: PackDaemon, told: Told) -> None:
    say(prepared, PREPARED, READY)
    told.take()
    for count in range(2, DAEMONS_MAX + 1):
        keeper = say(prepared, keepers.KeeperDied(-9))
        assert keeper.asked == []
        assert len(FakeKeeper.made) == count
        assert FakeKeeper.made[-1].options.adopt == PIPE
        # The daemon, its server and its clients have lost nothing.
        assert told.take() == []
    say(prepared, keepers.KeeperDied(-9))
    assert told.take()[-1][0] == "given up"


@pytest.fixture
def late(daemon: PackDaemon, told: Told) -> PackDaemon:
    """A daemon whose server comes with its first client."""
    daemon._options = replace(daemon._options, starts_server=False)
    daemon.start()
    say(daemon, CONTROL, READY)
    told.take()
    return daemon


def test_a_server_that_its_first_client_does_not_bring_is_done_without(
    late: PackDaemon, told: Told
) -> None:
    keeper = say(late, keepers.ServerStatus(9, "INITIALIZING", ""))
    assert told.take() == []
    say(late, keepers.ServerStatus(9, "EXITED", "no such device"))
    assert keeper.asked == ["stop"]
    *_, lost, given_up = told.take()
    assert lost == "lost"
    assert given_up == ("given up", "the MPS server cannot start: no such device")


def test_a_server_that_stays_away_is_not_waited_for_for_ever(late: PackDaemon, told: Told) -> None:
    late._options = replace(late._options, active_cap_s=0.0)
    say(late, keepers.ServerStatus(9, "INITIALIZING", ""))
    late.work()
    assert told.take()[-1] == (
        "given up", "the MPS server cannot start: none became ACTIVE within 0 s",
    )  # fmt: skip


def test_a_server_that_has_served_may_end(late: PackDaemon, told: Told) -> None:
    say(late, keepers.ServerStatus(9, "ACTIVE", ""))
    say(late, keepers.ServerStatus(9, "EXITED", ""))
    assert told.take() == []
    assert late.filenos() != []
