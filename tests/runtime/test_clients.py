"""Who is a client of the pack's MPS server, who goes without, and whom a fault has hit."""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest

from slurm_colloc.host.keeper.keeper_messages import Fault, ServerClients, Status
from slurm_colloc.host.mps.mps_control import ListedClient
from slurm_colloc.host.system import node_processes
from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime import mps_clients as module
from slurm_colloc.runtime.guarded_steps import Journal
from slurm_colloc.runtime.members import Member
from slurm_colloc.runtime.mps_clients import MpsClients
from slurm_colloc.runtime.settled_mode import GpuPatience
from slurm_colloc.store.member_states import StateRecord

from .test_members import SPEC

TEXT = (
    "[2026-11-21 14:37:41.352 Server 9] Client {PID: 11, Context: 1} encountered a fatal GPU error."
)


class Now:
    """The monotonic clock, as tests set it."""

    def __init__(self) -> None:
        self.s = 1000.0

    def monotonic(self) -> float:
        return self.s


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    clock = Now()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Whose process is which; a pid that is not in it has ended."""
    found: dict[int, int] = {}
    monkeypatch.setattr(node_processes, "find_ancestor", lambda pid, _: found.get(pid))
    return found


def build_clients(tmp_path: Path, *numbers: int, patience: GpuPatience | None = None) -> MpsClients:
    clients = MpsClients(tmp_path, Journal(tmp_path), patience)
    for number in numbers:
        member = Member(number, SPEC, StateRecord(MemberState.RUNNING, 1))
        member.wrapper_pid = 100 * number
        clients.watch(member)
    return clients


def build_status(*pids: int) -> Status:
    return Status((ServerClients(9, 1000, "ACTIVE", tuple(ListedClient(pid, 9) for pid in pids)),))


def suspects_of(clients: MpsClients, *numbers: int) -> list[tuple[int, ...]]:
    return [seen.suspects for seen in map(clients.get, numbers) if seen is not None]


def test_clients_are_found_by_the_log_and_by_the_daemon_s_list(
    tmp_path: Path, owners: dict[int, int]
) -> None:
    clients = build_clients(tmp_path, 1, 2, 3)
    owners.update({11: 1, 21: 2})
    clients.join(11)
    clients.join(99)
    assert clients.news == {1: True}
    clients.note_status(build_status(11, 21))
    assert clients.news == {1: True, 2: True}
    assert clients.statuses == 1
    assert [cast("Any", clients.get(n)).is_client for n in (1, 2, 3)] == [True, True, False]
    assert clients.get(4) is None


def test_a_pid_that_is_given_out_again_is_somebody_else_s(
    tmp_path: Path, owners: dict[int, int]
) -> None:
    clients = build_clients(tmp_path, 1, 2)
    owners[11] = 1
    clients.join(11)
    clients.forget(1)
    owners[11] = 2
    clients.note_status(build_status(11))
    assert clients.news == {2: True}


def test_the_daemon_is_asked_often_at_first_then_less_and_less_and_at_last_not_at_all(
    tmp_path: Path, now: Now
) -> None:
    clients = build_clients(tmp_path, 1)
    asked = []
    start = now.s
    for _ in range(7000):
        if clients.wants_status():
            asked.append(now.s - start)
        now.s += 0.1
    gaps = [round(later - earlier, 1) for earlier, later in itertools.pairwise(asked)]
    assert min(gaps) == pytest.approx(module.LOOK_INTERVAL_S, abs=0.2)
    assert gaps == sorted(gaps)
    assert max(asked) <= module.LOOK_FOR_S
    assert len(asked) < 60


def test_nobody_is_asked_about_who_is_known(
    tmp_path: Path, now: Now, owners: dict[int, int]
) -> None:
    clients = build_clients(
        tmp_path, 1, 2, patience=GpuPatience(gpu_looks_s=(1.0,), gpu_look_every_s=1.0)
    )
    owners.update({11: 1, 21: 2})
    clients.join(11)
    clients.note_outside([21])
    now.s += 100
    assert not clients.wants_status()
    assert not clients.wants_gpu_look()
    assert not build_clients(tmp_path).wants_status()


def test_nvml_is_asked_twice_for_a_member_and_once_a_minute_for_the_pack(
    tmp_path: Path, now: Now
) -> None:
    clients = build_clients(tmp_path, 1)
    start = now.s
    asked = []
    for second in range(300):
        now.s = start + second
        if second == 40:
            late = Member(2, SPEC, StateRecord(MemberState.RUNNING, 1))
            late.wrapper_pid = 200
            clients.watch(late)
        if clients.wants_gpu_look():
            asked.append(second)
    # At 15 s and 60 s for the first, at 55 s and 100 s for the second, put together.
    assert asked == [15, 75, 135]


def test_who_uses_the_gpu_without_mps_is_told_until_he_is_a_client(
    tmp_path: Path, owners: dict[int, int]
) -> None:
    clients = build_clients(tmp_path, 1, 2)
    owners.update({11: 1, 21: 2, 22: 2})
    clients.join(11)
    # A client's own process, the other's, one of nobody's, and a client again.
    clients.note_outside([11, 21, 99])
    assert clients.news == {1: True, 2: False}
    clients.note_outside([22])
    clients.join(22)
    assert clients.news == {1: True, 2: True}
    seen = clients.get(2)
    assert seen is not None
    assert (seen.is_client, seen.is_outside) == (True, False)
    told = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(event["event"], event["member"]) for event in told] == [("mps_outside", 2)]


def test_a_fault_has_hit_the_clients_that_the_server_lists(
    tmp_path: Path, owners: dict[int, int]
) -> None:
    clients = build_clients(tmp_path, 1, 2, 3)
    owners.update({11: 1, 21: 2, 31: 3})
    for pid in (11, 21, 31):
        clients.join(pid)
    clients.note_fault(Fault(9, (11, 21), 11, f"\n{TEXT}\nmore"))
    assert suspects_of(clients, 1, 2, 3) == [(1, 2), (1, 2), ()]
    assert clients.list_hit() == [1, 2]
    assert [seen.fault for seen in map(clients.get, (1, 3)) if seen] == [TEXT, ""]
    clients.forget(1)
    assert clients.list_hit() == [2]


@pytest.mark.parametrize("pids", [(11, 77), (77,), ()])
def test_a_suspect_whom_nobody_knows_may_be_anybody_s(
    tmp_path: Path, owners: dict[int, int], pids: tuple[int, ...]
) -> None:
    """It was too quick. Left out, it would make a culprit of the only one who is known."""
    clients = build_clients(tmp_path, 1, 2)
    owners[11] = 1
    clients.join(11)
    clients.note_fault(Fault(9, pids, None, TEXT))
    assert suspects_of(clients, 1, 2) == [(1, 2), (1, 2)]
    # Only who is known to be a client keeps the server from mending.
    assert clients.list_hit() == [1]
    # The daemon's list still has it: it was hit all the same.
    owners[77] = 2
    clients.note_status(build_status(11, 77))
    assert suspects_of(clients, 1, 2) == [(1, 2), (1, 2)] if 77 in pids else [(1, 2), ()]


def test_who_has_a_new_context_has_survived_what_came_before(
    tmp_path: Path, owners: dict[int, int]
) -> None:
    clients = build_clients(tmp_path, 1, 2)
    owners.update({11: 1, 21: 2, 12: 1})
    for pid in (11, 21):
        clients.join(pid)
    clients.note_fault(Fault(9, (11, 21), 11, TEXT))
    clients.lose("the MPS server has ended")
    assert [cast("Any", clients.get(n)).lost for n in (1, 2)] == ["the MPS server has ended"] * 2
    # A script's next program.
    clients.join(12)
    first, second = clients.get(1), clients.get(2)
    assert first is not None
    assert second is not None
    assert (first.suspects, first.fault, first.lost) == ((), "", "")
    assert second.suspects == (1, 2)
    assert second.lost
    # The old one, late in the daemon's list, is none.
    clients.note_status(build_status(21))
    assert second.lost


def test_only_those_that_are_clients_at_that_moment_lose_their_work_with_the_server(
    tmp_path: Path, owners: dict[int, int]
) -> None:
    clients = build_clients(tmp_path, 1, 2, 3, 4)
    owners.update({11: 1, 21: 2, 31: 3, 12: 1})
    for pid in (11, 21, 31):
        clients.join(pid)
    # The second has ended its program, the third has ended and started again, the fourth has none.
    clients.leave(21)
    clients.leave(99)
    clients.forget(3)
    member = Member(3, SPEC, StateRecord(MemberState.RUNNING, 1))
    member.wrapper_pid = 300
    clients.watch(member)
    clients.lose("the MPS daemon has died")
    died = "the MPS daemon has died"
    seen = [cast("Any", clients.get(number)) for number in (1, 2, 3, 4)]
    assert [one.broken for one in seen] == [died, "", "", ""]
    assert [one.lost for one in seen] == [died] * 4
    # The next program of its script does not bring back what was lost.
    clients.join(12)
    assert (seen[0].lost, seen[0].broken) == ("", died)
    # The daemon's list is late: that one is a client no more.
    clients.note_status(build_status(11))
    clients.leave(12)
    clients.lose("the MPS server has ended")
    assert seen[0].broken == died
    assert seen[0].contexts == set()


def test_a_fault_says_which_members_have_a_process_among_those_that_it_hit(
    tmp_path: Path, owners: dict[int, int]
) -> None:
    clients = build_clients(tmp_path, 1, 2)
    owners[11] = 1
    clients.join(11)
    clients.note_fault(Fault(9, (11, 77), 11, TEXT))
    assert [cast("Any", clients.get(n)).is_hit for n in (1, 2)] == [True, False]


def test_a_member_whose_own_daemon_began_after_the_end_of_the_pack_s_is_known_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ticks = round(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
    early = now_ticks - 1000 * os.sysconf("SC_CLK_TCK")
    parents = {71: 70, 70: 100, 72: 200, 73: 300, 74: 1}
    table = tuple(
        node_processes.Process(node_processes.ProcessId(pid, ticks), parents[pid], pid, "S", name)
        for pid, ticks, name in (
            (71, now_ticks, "nvidia-cuda-mps"),
            # Older than the end; another program; the pack's own, which is below no member.
            (72, early, "nvidia-cuda-mps"),
            (73, now_ticks, "python3"),
            (74, now_ticks, "nvidia-cuda-mps"),
        )
    )
    monkeypatch.setattr(node_processes, "list_running_processes", lambda: table)
    monkeypatch.setattr(
        node_processes,
        "find_ancestor",
        lambda pid, owners: owners.get(parents.get(parents[pid], 0), owners.get(parents[pid])),
    )
    clients = build_clients(tmp_path, 1, 2, 3)
    clients.look_for_own_daemons()
    assert [cast("Any", clients.get(n)).own_daemon for n in (1, 2, 3)] == ["", "", ""]
    clients.lose("the MPS daemon has died")
    clients.look_for_own_daemons()
    assert [cast("Any", clients.get(n)).own_daemon for n in (1, 2, 3)] == [
        "it started an MPS daemon of its own after the pack's was ended (process 71)",
        "",
        "",
    ]


def test_a_step_inside_a_script_is_found_by_the_member_that_it_names(
    tmp_path: Path, owners: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = build_clients(tmp_path, 1, 2)
    named = {11: (1, 1), 31: (3, 1)}
    packs = set()

    def read_named_start(pid: int, pack: bytes) -> tuple[int, int] | None:
        packs.add(pack)
        return named.get(pid)

    monkeypatch.setattr(node_processes, "read_named_start", read_named_start)
    owners[21] = 2
    for pid in (11, 21, 31, 41):
        clients.join(pid)
    # A member that it does not follow is none of its own.
    assert clients.news == {1: True, 2: True}
    assert packs == {os.fsencode(tmp_path)}
