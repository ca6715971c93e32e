"""What each GPU set of a job gets: each GPU and CPU at most once, near ones where they suffice."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.host.nvml.nvml_query import Gpu, NvmlAnswer
from slurm_colloc.runtime.allocation import Allocation
from slurm_colloc.runtime.divide_gpus import (
    GpuSetWant,
    JobGpu,
    assign_gpus,
    build_division,
    build_set_environment,
    build_shares,
    list_job_gpus,
    parse_cpu_list,
    read_near_cpus,
)
from slurm_colloc.store.pack_directory import GpuSetShare

UUIDS = tuple(f"GPU-0000000{n}-0000-0000-0000-000000000000" for n in range(8))


@dataclasses.dataclass(frozen=True)
class Node:
    """A node as a job may have it: cores in NUMA domains, GPUs near to one of them each."""

    cores: tuple[tuple[int, ...], ...]
    gpus: tuple[JobGpu, ...]
    wants: tuple[GpuSetWant, ...]


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    threads = draw(st.sampled_from([1, 2]))
    per_domain = [draw(st.integers(1, 6)) for _ in range(draw(st.integers(1, 3)))]
    cores, domains, first = [], [], 0
    for count in per_domain:
        own = [tuple(range(first + threads * n, first + threads * (n + 1))) for n in range(count)]
        first += threads * count
        cores += own
        domains.append(frozenset(cpu for core in own for cpu in core))
    gpus = tuple(
        JobGpu(
            UUIDS[number],
            str(number),
            model=draw(st.sampled_from(["A", "A", "B"])),
            near=draw(st.sampled_from([*domains, *domains, frozenset()])),
            problem=draw(st.sampled_from(["", "", "", "divided by MIG"])),
        )
        for number in range(draw(st.integers(1, 8)))
    )
    wants = draw(
        st.lists(
            st.builds(
                GpuSetWant, st.integers(1, 3), st.integers(1, 4), st.none() | st.integers(1, 999)
            ),
            min_size=1,
            max_size=8,
        )
    )
    return Node(tuple(cores), gpus, tuple(wants))


@given(node=nodes(), memory_mb=st.none() | st.integers(0, 100_000))
def test_each_gpu_and_cpu_is_given_once_at_most_and_no_more_memory_than_there_is(
    node: Node, memory_mb: int | None
) -> None:
    shares, is_near, notes = build_shares(node.gpus, node.wants, node.cores, memory_mb)
    given_gpus = [gpu for share in shares for gpu in share.gpus]
    assert len(set(given_gpus)) == len(given_gpus)
    assert set(given_gpus) <= {gpu.word for gpu in node.gpus}
    wanted = sum(want.gpus for want in node.wants)
    # No set has too few while one is left over.
    assert len(given_gpus) == min(wanted, len(node.gpus))
    given_cpus = [cpu for share in shares for cpu in share.cpus]
    every = {cpu for core in node.cores for cpu in core}
    assert len(set(given_cpus)) == len(given_cpus)
    assert set(given_cpus) <= every
    able = [n for n, share in enumerate(shares) if not share.problem]
    if sum(node.wants[n].cpus for n in able) <= len(every):
        # Each that can run has what it was planned with.
        assert all(len(shares[n].cpus) >= node.wants[n].cpus for n in able)
    else:
        assert not given_cpus
        assert any("fewer CPUs" in note for note in notes)
    told = [share.host_memory_mb for share in shares if share.host_memory_mb is not None]
    assert sum(told) <= (memory_mb or 0)
    near = {gpu.word: gpu.near for gpu in node.gpus}
    if is_near:
        for n in able:
            own = frozenset().union(*(near[gpu] for gpu in shares[n].gpus))
            assert own.issuperset(shares[n].cpus)


@given(domains=st.integers(1, 4), per_domain=st.integers(1, 2), more=st.integers(0, 3))
def test_where_near_cpus_suffice_each_set_has_near_ones(
    domains: int, per_domain: int, more: int
) -> None:
    size = per_domain + more
    cores = [(cpu,) for cpu in range(domains * size)]
    gpus = tuple(
        JobGpu(UUIDS[d * per_domain + n], near=frozenset(range(d * size, (d + 1) * size)))
        for d in range(domains)
        for n in range(per_domain)
    )
    wants = [GpuSetWant(1, 1)] * len(gpus)
    shares, is_near, notes = build_shares(gpus, wants, cores, None)
    assert is_near
    assert notes == ()
    for gpu, share in zip(gpus, shares, strict=True):
        assert share.gpus == (gpu.word,)
        assert gpu.near.issuperset(share.cpus)
    # And all of them are used.
    assert sorted(cpu for share in shares for cpu in share.cpus) == list(range(domains * size))


def test_a_pair_is_of_one_model_and_near_to_the_same_cpus() -> None:
    left, right = frozenset(range(4)), frozenset(range(4, 8))
    gpus = (
        JobGpu(UUIDS[0], near=left, model="A"),
        JobGpu(UUIDS[1], near=right, model="A"),
        JobGpu(UUIDS[2], near=left, model="B"),
        JobGpu(UUIDS[3], near=right, model="A"),
    )
    found = assign_gpus(gpus, [GpuSetWant(1, 1), GpuSetWant(2, 1), GpuSetWant(1, 1)])
    words = [[gpu.word for gpu in own] for own in found]
    assert words == [[UUIDS[0]], [UUIDS[1], UUIDS[3]], [UUIDS[2]]]


def test_what_cannot_be_used_goes_to_the_smallest_set() -> None:
    gpus = (JobGpu(UUIDS[0], problem="divided by MIG"), JobGpu(UUIDS[1]), JobGpu(UUIDS[2]))
    shares, _, _ = build_shares(gpus, [GpuSetWant(2, 1), GpuSetWant(1, 1)], [(0,), (1,)], 100)
    assert shares[0].gpus == UUIDS[1:3]
    assert shares[0].problem == ""
    assert shares[1].problem == "divided by MIG"
    # Nor does it keep CPUs and host memory from those that run.
    assert shares[0].cpus == (0, 1)
    assert shares[0].host_memory_mb == 100
    assert (shares[1].cpus, shares[1].host_memory_mb) == ((), None)


def test_where_no_set_can_be_used_each_tries_as_a_pack_of_its_own_would() -> None:
    gpus = tuple(JobGpu(uuid, problem="divided by MIG") for uuid in UUIDS[:2])
    shares, _, notes = build_shares(gpus, [GpuSetWant(1, 1)] * 2, [(0,), (1,)], None)
    assert [share.problem for share in shares] == ["", ""]
    assert "divided by MIG" in notes


def test_too_few_gpus_leave_the_last_sets_without() -> None:
    shares, _, _ = build_shares([JobGpu("0")], [GpuSetWant(1, 1)] * 2, [(0,), (1,)], None)
    assert shares[0].gpus == ("0",)
    assert shares[1].gpus == ()
    assert shares[1].problem == "Slurm gave 1 GPUs, and 0 of the 1 of this set are left"


# -- which GPUs are the job's -----------------------------------------------------------------

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "2,3", "CUDA_VISIBLE_DEVICES": "0,1"}


def answer(*gpus: Gpu, problem: str = "") -> NvmlAnswer:
    return NvmlAnswer(problem, "580.1", "13.0", gpus)


def test_gpus_are_named_by_uuid_and_slurm_s_number() -> None:
    said = answer(*(Gpu(n, UUIDS[n], "A", minor_number=n) for n in range(4)))
    gpus, doubt = list_job_gpus(said, JOB)
    assert [(gpu.word, gpu.slurm_index) for gpu in gpus] == [(UUIDS[2], "2"), (UUIDS[3], "3")]
    assert doubt == ""


def test_one_that_nvml_does_not_show_is_the_job_s_all_the_same() -> None:
    said = answer(*(Gpu(n, UUIDS[n], "A", minor_number=n) for n in (0, 1, 2)), Gpu(3))
    gpus, _ = list_job_gpus(said, JOB)
    assert [gpu.word for gpu in gpus] == [UUIDS[2], "3"]
    assert [gpu.problem for gpu in gpus] == ["", "NVML does not show GPU 3 (slurm_index)"]


def test_without_nvml_gpus_are_divided_as_slurm_counts_them() -> None:
    gpus, doubt = list_job_gpus(answer(problem="no driver"), JOB)
    assert [(gpu.word, gpu.slurm_index) for gpu in gpus] == [("0", "2"), ("1", "3")]
    assert doubt == "no driver"


def test_mig_is_a_problem_unless_it_was_asked_for() -> None:
    said = answer(
        Gpu(0, UUIDS[0], "A", minor_number=2, mig_enabled=True),
        Gpu(1, UUIDS[1], "A", minor_number=3),
    )
    gpus, _ = list_job_gpus(said, JOB)
    assert [gpu.problem for gpu in gpus] == [
        f"{UUIDS[0]} has MIG on, where programs find nothing but instances",
        "",
    ]
    gpus, _ = list_job_gpus(said, JOB, takes_mig=True)
    assert [gpu.problem for gpu in gpus] == ["", ""]


# -- from the kernel --------------------------------------------------------------------------


def test_nearness_is_the_kernel_s_word(tmp_path: Path) -> None:
    for name, cpus in (("0000:17:00.0", "0-1"), ("0000:b3:00.0", "2,3")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "local_cpulist").write_text(f"{cpus}\n")
    said = answer(
        Gpu(0, UUIDS[0], "A", minor_number=2, pci_bus_id="00000000:B3:00.0"),
        Gpu(1, UUIDS[1], "A", minor_number=3, pci_bus_id="00000000:17:00.0"),
    )
    allocation = Allocation("7", "7", "n", 3, 4, ((0,), (1,), (2,), (3,)), (), JOB)
    division = build_division(said, [GpuSetWant(1, 2, 10)] * 2, allocation, pci_devices=tmp_path)
    assert division.is_near
    assert [share.cpus for share in division.shares] == [(2, 3), (0, 1)]
    assert division.restarts == 3
    assert division.notes == ()


def test_the_longest_member_gets_the_fastest_gpu(tmp_path: Path) -> None:
    said = answer(*(Gpu(n, uuid, "A", minor_number=2 + n) for n, uuid in enumerate(UUIDS[:2])))
    allocation = Allocation("7", "7", "n", 0, 2, ((0,), (1,)), (), JOB)

    def divide(*limits_s: int | None, paces: dict[str, float]) -> list[tuple[str, ...]]:
        wants = [GpuSetWant(1, 1, None, limit_s) for limit_s in limits_s]
        division = build_division(said, wants, allocation, pci_devices=tmp_path, paces=paces)
        return [share.gpus for share in division.shares]

    slow, fast = {UUIDS[0]: 0.67, UUIDS[1]: 1.02}, {UUIDS[0]: 1.02, UUIDS[1]: 0.67}
    assert divide(60, 600, paces=slow) == [UUIDS[:1], UUIDS[1:2]]
    assert divide(60, 600, paces=fast) == [UUIDS[1:2], UUIDS[:1]]
    assert divide(600, None, paces=slow) == [UUIDS[:1], UUIDS[1:2]]
    # Of equally long ones those that are planned to end last come first.
    assert divide(60, 60, paces=slow) == [UUIDS[1:2], UUIDS[:1]]
    assert divide(60, 60, paces={}) == [UUIDS[:1], UUIDS[1:2]]


def test_what_the_kernel_does_not_say_is_said(tmp_path: Path) -> None:
    assert read_near_cpus("00000000:B3:00.0", tmp_path) == frozenset()
    assert read_near_cpus(None, tmp_path) == frozenset()
    allocation = Allocation("7", "7", "n", 0, 2, ((0,), (1,)), (), JOB)
    division = build_division(
        answer(problem="no driver"), [GpuSetWant(1, 1)] * 2, allocation, pci_devices=tmp_path
    )
    assert not division.is_near
    assert division.notes == (
        "CPUs are not divided by nearness: the kernel does not say which are near",
        "not all of its GPUs are known by UUID: no driver",
    )


@given(st.sets(st.integers(0, 200), min_size=1))
def test_a_cpu_list_is_read_as_the_kernel_writes_it(cpus: set[int]) -> None:
    parts: list[list[int]] = []
    for cpu in sorted(cpus):
        if parts and parts[-1][-1] == cpu - 1:
            parts[-1].append(cpu)
        else:
            parts.append([cpu])
    text = ",".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)
    assert parse_cpu_list(text + "\n") == sorted(cpus)


@pytest.mark.parametrize("text", ["", "x", "-"])
def test_what_is_no_cpu_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        parse_cpu_list(text)


# -- the environment of a set -----------------------------------------------------------------


def test_a_set_s_environment_is_that_of_a_job_with_its_share_alone() -> None:
    environ = {
        **JOB,
        "SLURM_CPUS_ON_NODE": "16",
        "SLURM_JOB_CPUS_PER_NODE": "16",
        "SLURM_GPUS_ON_NODE": "2",
        "SLURM_MEM_PER_CPU": "100",
        "HOME": "/h",
    }
    share = GpuSetShare((UUIDS[3],), ("3",), (4, 5), 900)
    assert build_set_environment(environ, share, 7) == {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_GPUS": "3",
        "CUDA_VISIBLE_DEVICES": UUIDS[3],
        "SLURM_CPUS_ON_NODE": "2",
        "SLURM_JOB_CPUS_PER_NODE": "2",
        "SLURM_GPUS_ON_NODE": "1",
        "SLURM_MEM_PER_NODE": "900",
        "HOME": "/h",
    }
    # Where none is bound the number counts that was planned; memory that is not limited stays so.
    share = dataclasses.replace(share, cpus=(), host_memory_mb=None)
    unbound = build_set_environment(environ, share, 7)
    assert unbound["SLURM_CPUS_ON_NODE"] == "7"
    assert unbound["SLURM_MEM_PER_CPU"] == "100"
