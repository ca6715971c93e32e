"""GPU and compute instances of simulated GPUs, through NVIDIA's own binding."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from slurm_colloc.model.mig_profiles import MIG_TABLES
from slurm_colloc_lab.simgpu.gpu_models import A30, A100_40, A100_80, B200, H100_80, H200, MODELS
from slurm_colloc_lab.simgpu.nvml.mig_instances import read_instances

from ..model.mig_layouts import enumerate_layouts
from ..suites import leave_to_parts
from ..wait_until import wait_until
from .conftest import Simulation, running_simulation

INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 2, 3, 4, 6
IN_USE, INSUFFICIENT_RESOURCES = 19, 23

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes instances")

# `n`, `code` and `pids` come from the conftest's prelude.
HELPERS = """
from ctypes import byref, c_uint
h = n.nvmlDeviceGetHandleByIndex(0)
FULL = {19: 0, 20: 0, 15: 0, 14: 1, 9: 2, 5: 3, 0: 4}
def make(profile, start, size, device=h):
    place = n.c_nvmlGpuInstancePlacement_t(start, size)
    return n.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile, byref(place))
def fill(instance, profile=None):
    profile = FULL[n.nvmlGpuInstanceGetInfo(instance).profileId] if profile is None else profile
    return n.nvmlGpuInstanceCreateComputeInstance(instance, profile)
def device_of(part):
    return n.nvmlComputeInstanceGetInfo(part).device
def room(device=h):
    return [n.nvmlDeviceGetGpuInstanceRemainingCapacity(device, p) for p in FULL]
def places(function, handle, profile):
    count = c_uint()
    function(handle, profile, None, byref(count))
    found = (n.c_nvmlGpuInstancePlacement_t * count.value)()
    function(handle, profile, found, byref(count))
    return [[place.start, place.size] for place in found]
"""


@pytest.fixture
def partitioned() -> Iterator[Simulation]:
    """A node with an H100, an A100 and an A30, all with MIG on."""
    with running_simulation("sgm", {"n1": [H100_80, A100_40, A30]}, mig=True) as made:
        yield made


def ask(simulation: Simulation, code: str, **options: Any) -> Any:
    return simulation.ask(f"{HELPERS}\n{code}", **options)


# Layouts

_WALK = """
table = json.loads(WANTED)
h = n.nvmlDeviceGetHandleByIndex(0)
kinds = sorted((start, size, profile) for profile, start, size in table)
found = set()
def attempt(start, size, profile):
    try:
        return make(profile, start, size)
    except n.NVMLError as error:
        assert error.value == 23, error
def walk(first, chosen):
    full = True
    for number, kind in enumerate(kinds):
        instance = attempt(*kind)
        if instance is None:
            continue
        full = False
        if number >= first:
            walk(number + 1, [*chosen, kind])
        n.nvmlGpuInstanceDestroy(instance)
    if full:
        found.add(tuple(chosen))
walk(0, [])
answer = sorted(found)
"""


def walk_layouts(simulation: Simulation, kinds: list[tuple[int, int, int]]) -> set[tuple[Any, ...]]:
    """Try every instance everywhere in every state: layouts into which nothing more goes."""
    wanted = json.dumps(kinds)
    found = simulation.ask(f"{HELPERS}\nWANTED = {wanted!r}\n{_WALK}")
    return {tuple(tuple(kind) for kind in layout) for layout in found}


@pytest.mark.parametrize(
    "model",
    leave_to_parts([A100_40, A100_80, H100_80, H200, B200], but=[A100_40, H200]),
    ids=lambda m: m.key,
)
def test_a_seven_slice_gpu_has_nineteen_maximal_layouts(model: Any) -> None:
    table = [
        profile
        for profile in MIG_TABLES[model.mig_table]
        if not profile.media_extensions and profile.profile_id != 15
    ]
    with running_simulation("sgl", {"n1": [model]}, mig=True) as simulation:
        found = walk_layouts(
            simulation,
            [(one.profile_id, p.start, p.size) for one in table for p in one.placements],
        )
    assert len(found) == 19
    assert found == {
        tuple((p.placement.start, p.placement.size, p.profile.profile_id) for p in layout)
        for layout in enumerate_layouts(table)
    }


@pytest.mark.parametrize("key", ["a30", "h100"])
def test_with_all_its_profiles_a_gpu_has_the_layouts_that_are_planned_with(key: str) -> None:
    model = MODELS[key]
    table = MIG_TABLES[model.mig_table]
    # Double memory and media extensions, without the many places of the small ones.
    table = tuple(one for one in table if key == "a30" or one.profile_id in (15, 20, 9, 5, 0))
    with running_simulation("sgl", {"n1": [model]}, mig=True) as simulation:
        found = walk_layouts(
            simulation,
            [(one.profile_id, p.start, p.size) for one in table for p in one.placements],
        )
    assert found == {
        tuple(sorted((p.placement.start, p.placement.size, p.profile.profile_id) for p in layout))
        for layout in enumerate_layouts(table)
    }


# GPU instances


def test_instances_take_memory_slices_and_leave_less_room(partitioned: Simulation) -> None:
    answer = ask(
        partitioned,
        """
answer = [room()]
one = make(9, 4, 4)
answer.append(room())
two = make(14, 2, 2)
answer.append(room())
three = make(20, 0, 1)
answer.append(room())
info = n.nvmlGpuInstanceGetInfo(two)
answer.append([info.id, info.profileId, info.placement.start, info.placement.size,
               n.nvmlDeviceGetUUID(info.device) == n.nvmlDeviceGetUUID(h)])
""",
    )
    assert answer == [
        [7, 1, 4, 3, 2, 1, 1],
        [4, 1, 2, 2, 1, 1, 0],
        [2, 1, 1, 1, 0, 0, 0],
        [1, 0, 0, 0, 0, 0, 0],
        [6, 14, 2, 2, True],
    ]


def test_ids_are_the_driver_s_places_and_not_counted(partitioned: Simulation) -> None:
    answer = ask(
        partitioned,
        """
def number(profile, start, size, device=h):
    instance = make(profile, start, size, device)
    found = n.nvmlGpuInstanceGetInfo(instance).id
    n.nvmlGpuInstanceDestroy(instance)
    return found
answer = [[number(19, start, 1) for start in range(7)], [number(14, s, 2) for s in (0, 2, 4)],
          [number(9, s, 4) for s in (0, 4)], number(5, 0, 4), number(0, 0, 8),
          [number(14, s, 1, n.nvmlDeviceGetHandleByIndex(2)) for s in range(4)]]
""",
    )
    assert answer == [[11, 12, 13, 14, 7, 8, 9], [5, 6, 3], [2, 1], 2, 0, [3, 4, 5, 6]]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("make(19, 4, 1)", INSUFFICIENT_RESOURCES),  # where the 3g lies
        ("make(9, 4, 4)", INSUFFICIENT_RESOURCES),  # the very same once more
        ("make(9, 2, 4)", INVALID_ARGUMENT),
        ("make(19, 7, 1)", INVALID_ARGUMENT),
        ("make(9, 0, 2)", INVALID_ARGUMENT),
        ("make(7, 0, 1)", INVALID_ARGUMENT),
        ("make(21, 0, 1)", NOT_SUPPORTED),
        ("make(5, 0, 4), make(19, 0, 1)", INSUFFICIENT_RESOURCES),
        ("make(20, 0, 1), make(20, 1, 1)", INSUFFICIENT_RESOURCES),
        ("n.nvmlDeviceCreateGpuInstance(h, 0)", INSUFFICIENT_RESOURCES),
        ("n.nvmlDeviceGetGpuInstanceById(h, 2)", NOT_FOUND),
        ("n.nvmlGpuInstanceDestroy(first)", IN_USE),  # a compute instance is in it
        ("n.nvmlGpuInstanceDestroy(None)", INVALID_ARGUMENT),
        ("n.nvmlGpuInstanceGetInfo(None)", INVALID_ARGUMENT),
    ],
)
def test_what_does_not_go_has_its_error(partitioned: Simulation, call: str, error: int) -> None:
    answer = ask(
        partitioned, f"first = make(9, 4, 4); fill(first)\nanswer = code(lambda: ({call}))"
    )
    assert answer == error


def test_seven_small_ones_fill_a_gpu_and_the_memory_of_two_large_ones_too(
    partitioned: Simulation,
) -> None:
    answer = ask(
        partitioned,
        """
small = [make(19, start, 1) for start in range(7)]
answer = [room()]
for one in small:
    n.nvmlGpuInstanceDestroy(one)
large = [make(9, 4, 4), make(9, 0, 4)]
answer.append(room())
answer.append(n.nvmlDeviceGetMaxMigDeviceCount(h))
""",
    )
    assert answer == [[0] * 7, [0] * 7, 7]


def test_without_a_placement_the_driver_chooses_a_free_one(partitioned: Simulation) -> None:
    answer = ask(
        partitioned,
        """
make(9, 0, 4)
made = [n.nvmlDeviceCreateGpuInstance(h, 19) for _ in range(3)]
answer = [sorted(n.nvmlGpuInstanceGetInfo(one).placement.start for one in made),
          code(n.nvmlDeviceCreateGpuInstance, h, 19)]
""",
    )
    assert answer == [[4, 5, 6], INSUFFICIENT_RESOURCES]


def test_instances_are_listed_and_found_by_another_process(partitioned: Simulation) -> None:
    ask(partitioned, "make(9, 4, 4); make(19, 0, 1); make(19, 2, 1); answer = 0")
    answer = ask(
        partitioned,
        """
def listed(profile):
    found, count = (n.c_nvmlGpuInstance_t * 7)(), c_uint(7)
    n.nvmlDeviceGetGpuInstances(h, profile, found, byref(count))
    return [n.nvmlGpuInstanceGetInfo(found[k]).id for k in range(count.value)]
one = n.nvmlDeviceGetGpuInstanceById(h, 1)
answer = [listed(9), listed(19), listed(14), n.nvmlGpuInstanceGetInfo(one).profileId]
""",
    )
    assert answer == [[1], [11, 13], [], 9]


def test_what_has_gone_is_not_found(partitioned: Simulation) -> None:
    answer = ask(
        partitioned,
        """
one = make(9, 4, 4)
part = fill(one)
device = device_of(part)
uuid = n.nvmlDeviceGetUUID(device)
n.nvmlComputeInstanceDestroy(part)
n.nvmlGpuInstanceDestroy(one)
again = make(9, 4, 4)
answer = [code(n.nvmlComputeInstanceDestroy, part), code(n.nvmlGpuInstanceDestroy, one),
          code(n.nvmlGpuInstanceGetInfo, one), code(n.nvmlComputeInstanceGetInfo, part),
          code(n.nvmlDeviceGetUUID, device), code(n.nvmlDeviceGetHandleByUUID, uuid),
          code(n.nvmlGpuInstanceGetInfo, again)]
""",
    )
    assert answer == [NOT_FOUND] * 6 + [0]


# Compute instances and MIG devices


def test_a_compute_instance_is_a_device_of_its_own(partitioned: Simulation) -> None:
    answer = ask(
        partitioned,
        """
one = make(9, 4, 4)
part = fill(one)
d = device_of(part)
uuid = n.nvmlDeviceGetUUID(d)
a, m = n.nvmlDeviceGetAttributes_v2(d), n.nvmlDeviceGetMemoryInfo(d)
parent = n.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(d)
ids = n.nvmlDeviceGetGpuInstanceId(d), n.nvmlDeviceGetComputeInstanceId(d)
old = f"MIG-{n.nvmlDeviceGetUUID(parent)}/{ids[0]}/{ids[1]}"
same = [n.nvmlDeviceGetHandleByUUID(uuid), n.nvmlDeviceGetHandleByUUID(uuid.upper()),
        n.nvmlDeviceGetHandleByUUID(old), n.nvmlDeviceGetMigDeviceHandleByIndex(h, 0)]
answer = [n.nvmlDeviceGetName(d), uuid[:4], len(uuid), n.nvmlDeviceIsMigDeviceHandle(d).value, ids,
          [a.multiprocessorCount, a.sharedCopyEngineCount, a.sharedDecoderCount,
           a.gpuInstanceSliceCount, a.computeInstanceSliceCount, a.memorySizeMB],
          [m.total >> 20, m.used], n.nvmlDeviceGetUUID(parent) == n.nvmlDeviceGetUUID(h),
          [n.nvmlDeviceGetUUID(other) == uuid for other in same],
          n.nvmlDeviceGetCudaComputeCapability(d), n.nvmlDeviceGetComputeMode(d)]
""",
    )
    assert answer == [
        "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "MIG-",
        40,
        1,
        [1, 0],
        [60, 3, 3, 3, 3, 40448],
        [40448, 0],
        True,
        [True] * 4,
        [9, 0],
        0,
    ]


@pytest.mark.parametrize(
    ("profile", "place", "expected"),
    [
        (
            9,
            (0, 4),
            {0: [3, 16, [[0, 1], [1, 1], [2, 1]]], 1: [1, 32, [[0, 2]]], 2: [1, 60, [[0, 3]]]},
        ),
        (
            5,
            (0, 4),
            {
                0: [4, 16, [[0, 1], [1, 1], [2, 1], [3, 1]]],
                1: [2, 32, [[0, 2], [2, 2]]],
                3: [1, 64, [[0, 4]]],
            },
        ),
        (15, (2, 2), {0: [1, 26, [[0, 1]]]}),
        (
            0,
            (0, 8),
            {
                0: [7, 16, [[k, 1] for k in range(7)]],
                1: [3, 32, [[0, 2], [2, 2], [4, 2]]],
                2: [2, 48, [[0, 3], [4, 3]]],
                3: [1, 64, [[0, 4]]],
                4: [1, 132, [[0, 7]]],
            },
        ),
    ],
)
def test_compute_profiles_are_the_parts_of_their_gpu_instance(
    partitioned: Simulation, profile: int, place: tuple[int, int], expected: dict[int, Any]
) -> None:
    answer = ask(
        partitioned,
        f"""
one = make({profile}, {place[0]}, {place[1]})
answer = []
for number in range(9):
    try:
        info = n.nvmlGpuInstanceGetComputeInstanceProfileInfo(one, number, 0)
    except n.NVMLError as error:
        answer.append(error.value)
        continue
    where = places(n.nvmlGpuInstanceGetComputeInstancePossiblePlacements, one, info.id)
    assert n.nvmlGpuInstanceGetComputeInstanceRemainingCapacity(one, info.id) == len(where)
    answer.append([info.instanceCount, info.multiprocessorCount, where])
""",
    )
    wanted = [expected.get(number, NOT_SUPPORTED) for number in range(8)]
    assert answer == [*wanted, INVALID_ARGUMENT]


def test_several_compute_instances_share_a_gpu_instance(partitioned: Simulation) -> None:
    answer = ask(
        partitioned,
        """
one = make(0, 0, 8)
four = fill(one, 3)
three = fill(one, 2)
names = [n.nvmlDeviceGetName(device_of(part)) for part in (four, three)]
ids = [n.nvmlComputeInstanceGetInfo(part).id for part in (four, three)]
spots = [n.nvmlComputeInstanceGetInfo(part).placement.start for part in (four, three)]
full = [code(fill, one, profile) for profile in range(5)]
memory = [n.nvmlDeviceGetMemoryInfo(device_of(part)).total >> 20 for part in (four, three)]
answer = [names, ids, spots, full, memory]
""",
    )
    assert answer == [
        [
            "NVIDIA H100 80GB HBM3 MIG 4c.7g.80gb",
            "NVIDIA H100 80GB HBM3 MIG 3c.7g.80gb",
        ],
        [0, 1],
        [0, 4],
        [INSUFFICIENT_RESOURCES] * 5,
        [81152, 81152],
    ]


def test_the_numbers_of_devices_have_holes(partitioned: Simulation) -> None:
    answer = ask(
        partitioned,
        """
parts = [fill(make(19, start, 1)) for start in (6, 5, 4)]
uuids = [n.nvmlDeviceGetUUID(device_of(part)) for part in parts]
n.nvmlComputeInstanceDestroy(parts[1])
def at(index):
    return n.nvmlDeviceGetUUID(n.nvmlDeviceGetMigDeviceHandleByIndex(h, index))
answer = [at(0) == uuids[0], code(at, 1), at(2) == uuids[2], code(at, 3)]
""",
    )
    assert answer == [True, NOT_FOUND, True, NOT_FOUND]


def test_a_device_that_is_made_again_has_another_uuid(partitioned: Simulation) -> None:
    answer = ask(
        partitioned,
        """
answer = []
for _ in range(2):
    one = make(9, 4, 4)
    part = fill(one)
    answer.append(n.nvmlDeviceGetUUID(device_of(part)))
    n.nvmlComputeInstanceDestroy(part)
    n.nvmlGpuInstanceDestroy(one)
""",
    )
    assert len(set(answer)) == 2


# Permissions


def test_an_ordinary_user_makes_and_destroys_nothing(
    partitioned: Simulation, stranger: int
) -> None:
    uuid = ask(partitioned, "answer = n.nvmlDeviceGetUUID(device_of(fill(make(9, 4, 4))))")
    answer = ask(
        partitioned,
        f"""
d = n.nvmlDeviceGetHandleByUUID({uuid!r})
answer = [code(make, 19, 0, 1), code(n.nvmlDeviceCreateGpuInstance, h, 19),
          code(n.nvmlDeviceSetMigMode, h, 0), code(n.nvmlDeviceGetGpuInstanceById, h, 1),
          room(), n.nvmlDeviceGetMemoryInfo(d).total >> 20,
          code(n.nvmlDeviceGetMemoryInfo, h), code(n.nvmlDeviceGetComputeRunningProcesses, h),
          n.nvmlDeviceGetComputeRunningProcesses(d)]
""",
        uid=stranger,
    )
    assert answer == [
        *[NO_PERMISSION] * 4,
        [4, 1, 2, 2, 1, 1, 0],
        40448,
        NO_PERMISSION,
        NO_PERMISSION,
        [],
    ]


# What is left by one that is killed


def test_a_program_killed_between_two_steps_leaves_a_gpu_instance_without_parts(
    partitioned: Simulation,
) -> None:
    code = f"import pynvml as n, time\nn.nvmlInit()\n{HELPERS}\nmake(9, 4, 4)\ntime.sleep(60)"
    gpu = partitioned.node.read_gpus()[0]
    program = subprocess.Popen([sys.executable, "-c", code], env=partitioned.environment())
    try:
        wait_until(lambda: read_instances(partitioned.node, gpu)[0], "it makes an instance")
    finally:
        program.send_signal(signal.SIGKILL)
        program.wait()
    whole, parts = read_instances(partitioned.node, gpu)
    assert [(one.instance_id, one.profile_id) for one in whole] == [(1, 9)]
    assert parts == ()
    assert ask(
        partitioned,
        "n.nvmlGpuInstanceDestroy(n.nvmlDeviceGetGpuInstanceById(h, 1)); answer = room()",
    ) == [7, 1, 4, 3, 2, 1, 1]


def test_programs_that_change_a_gpu_at_once_never_make_instances_overlap(
    partitioned: Simulation,
) -> None:
    code = f"""
import pynvml as n, random, sys
n.nvmlInit()
{HELPERS}
random.seed(int(sys.argv[1]))
for _ in range(150):
    profile, size, starts = random.choice([(19, 1, 7), (14, 2, 6), (9, 4, 8)])
    try:
        one = make(profile, random.randrange(0, starts, size), size)
        part = fill(one)
        n.nvmlComputeInstanceDestroy(part)
        if random.random() < 0.8:
            n.nvmlGpuInstanceDestroy(one)
    except n.NVMLError as error:
        assert error.value in (2, 23), error
"""
    programs = [
        subprocess.Popen([sys.executable, "-c", code, str(seed)], env=partitioned.environment())
        for seed in range(3)
    ]
    gpu = partitioned.node.read_gpus()[0]
    while any(program.poll() is None for program in programs):
        whole, parts = read_instances(partitioned.node, gpu)
        used = [
            k
            for one in whole
            for k in range(one.placement.start, one.placement.start + one.placement.size)
        ]
        assert len(used) == len(set(used))
        assert {part.gpu_instance for part in parts} <= {one.instance_id for one in whole}
    assert [program.returncode for program in programs] == [0, 0, 0]
    assert read_instances(partitioned.node, gpu)[0]
