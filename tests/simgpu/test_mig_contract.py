"""What can be read about MIG while it is off: one contract for the simulation and for a driver.

On a machine with a GPU `tests/gpu/run.sh PACKAGES OUT mig` runs it on the driver's own library. It
changes nothing there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.model.mig_profiles import MIG_TABLES, InstanceProfile, choose_mig_table
from slurm_colloc_lab.simgpu.gpu_models import MODELS
from slurm_colloc_lab.simgpu.nvml.partition_profiles import choose_engines, choose_number

from .conftest import running_simulation
from .mig_look import ALL_IDS, STRANGE_IDS

INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND = 2, 3, 4, 6
KNOWN_NUMBERS = 17

H100 = {
    # By number: id, name, slices, count, SMs; engines for copies, decoding, JPEG and flow; MiB.
    0: (19, "1g.10gb", 1, 7, 16, 1, 1, 1, 0, 9984),
    1: (14, "2g.20gb", 2, 3, 32, 2, 2, 2, 0, 20096),
    2: (9, "3g.40gb", 3, 2, 60, 3, 3, 3, 0, 40448),
    3: (5, "4g.40gb", 4, 1, 64, 4, 4, 4, 0, 40448),
    4: (0, "7g.80gb", 7, 1, 132, 8, 7, 7, 1, 81152),
    7: (20, "1g.10gb+me", 1, 1, 16, 1, 1, 1, 1, 9984),
    9: (15, "1g.20gb", 1, 4, 26, 1, 1, 1, 0, 20096),
}
"""As read on an H100 80GB HBM3 with driver 580.159.04, MIG off."""


def look(environment: dict[str, str]) -> dict[str, Any]:
    program = Path(__file__).with_name("mig_look.py")
    ended = subprocess.run(
        [sys.executable, str(program)],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return dict(json.loads(ended.stdout))


@pytest.fixture(scope="module", params=[*(f"simulated-{key}" for key in MODELS), "driver"])
def seen(request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """What NVML says, on each simulated GPU and on this machine's own."""
    if request.param == "driver":
        if not Path("/dev/nvidiactl").exists():
            pytest.skip("there is no NVIDIA driver")
        found = look(dict(os.environ))
        if found["first"]["mode"] != [0, 0]:
            pytest.skip(f"MIG is {found['first']['mode']} on {found['first']['name']}")
        yield found
        return
    if not shutil.which("cc"):
        pytest.skip("there is no C compiler")
    model = MODELS[request.param.removeprefix("simulated-")]
    with running_simulation("sgc", {"n1": [model]}) as made:
        yield look(made.environment())


@pytest.fixture
def table(seen: dict[str, Any]) -> tuple[InstanceProfile, ...]:
    first = seen["first"]
    chosen = choose_mig_table(first["name"], first["gpu_memory_mb"])
    if not chosen:
        pytest.skip(f"there is no table for {first['name']}")
    return chosen


def test_mig_is_off_and_has_no_devices(seen: dict[str, Any]) -> None:
    assert seen["first"]["mode"] == [0, 0]
    assert seen["first"]["devices"] == 0


def test_the_profiles_are_those_of_the_table(
    seen: dict[str, Any], table: tuple[InstanceProfile, ...]
) -> None:
    key = next(key for key, known in MIG_TABLES.items() if known == table)
    expected: list[dict[str, Any]] = [{"error": NOT_SUPPORTED} for _ in range(KNOWN_NUMBERS)]
    expected.append({"error": INVALID_ARGUMENT})
    for profile in table:
        engines = choose_engines(key, profile)
        expected[choose_number(profile)] = {
            "id": profile.profile_id,
            "name": f"MIG {profile.name}",
            "slices": profile.compute_slices,
            "count": profile.instances_max,
            "sms": profile.sms,
            "copy": engines.copy,
            "decoders": engines.decoders,
            "jpegs": engines.jpegs,
            "ofas": engines.ofas,
            "memory_mb": profile.memory_mb,
        }
    assert seen["first"]["profiles"] == expected


def test_an_h100_is_as_it_was_read(seen: dict[str, Any]) -> None:
    if seen["first"]["name"] != "NVIDIA H100 80GB HBM3":
        pytest.skip("it is another GPU")
    for number, (profile_id, name, *values) in H100.items():
        assert list(seen["first"]["profiles"][number].values()) == [
            *(profile_id, f"MIG {name}"),
            *values,
        ]


def test_a_profile_is_found_by_its_id(
    seen: dict[str, Any], table: tuple[InstanceProfile, ...]
) -> None:
    by_id = seen["first"]["by_id"]
    for profile in seen["first"]["profiles"]:
        if "error" not in profile:
            assert by_id[str(profile["id"])] == profile
    own = {profile.profile_id for profile in table}
    assert {by_id[str(i)]["error"] for i in ALL_IDS if i not in own} <= {NOT_FOUND}
    assert {by_id[str(i)]["error"] for i in STRANGE_IDS} == {INVALID_ARGUMENT}


def test_placements_and_capacity_are_those_of_an_empty_gpu(
    seen: dict[str, Any], table: tuple[InstanceProfile, ...]
) -> None:
    own = {profile.profile_id: profile for profile in table}
    first = seen["first"]
    for profile_id in ALL_IDS:
        places, capacity = first["placements"][str(profile_id)], first["capacity"][str(profile_id)]
        if profile_id in own:
            profile = own[profile_id]
            assert places == [[place.start, place.size] for place in profile.placements]
            assert capacity == profile.instances_max
        else:
            assert places == capacity == {"error": NOT_SUPPORTED}
    for profile_id in STRANGE_IDS:
        assert first["placements"][str(profile_id)] == {"error": INVALID_ARGUMENT}
        assert first["capacity"][str(profile_id)] == {"error": INVALID_ARGUMENT}


def test_there_are_no_instances(seen: dict[str, Any]) -> None:
    instances = seen["first"]["instances"]
    assert {instances[str(profile_id)] for profile_id in ALL_IDS} == {0}
    assert [instances[str(i)] for i in STRANGE_IDS] == [{"error": INVALID_ARGUMENT}] * 2


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("instance by id", NOT_FOUND),
        ("device by index", NOT_FOUND),
        ("device by a high index", NOT_FOUND),
        ("device by uuid", NOT_FOUND),
        ("device by an odd uuid", NOT_FOUND),
        ("instance of a GPU", INVALID_ARGUMENT),
        ("compute instance of a GPU", INVALID_ARGUMENT),
        ("parent of a GPU", INVALID_ARGUMENT),
        ("attributes of a GPU", NOT_SUPPORTED),
    ],
)
def test_what_is_not_there_has_its_error(seen: dict[str, Any], what: str, code: int) -> None:
    assert seen["first"][what] == {"error": code}


def test_a_gpu_is_no_mig_device_and_a_wrong_version_no_argument(seen: dict[str, Any]) -> None:
    assert seen["first"]["a GPU is a MIG device"] == 0
    assert seen["first"]["a wrong version"] == INVALID_ARGUMENT


def test_gpm_of_an_instance_that_is_not_there(seen: dict[str, Any]) -> None:
    ampere = "A100" in seen["first"]["name"] or "A30" in seen["first"]["name"]
    code = NOT_SUPPORTED if ampere else INVALID_ARGUMENT
    assert seen["first"]["GPM of an instance"] == {"error": code}


def test_an_ordinary_user_reads_the_same(seen: dict[str, Any]) -> None:
    if "ordinary user" not in seen:
        pytest.skip("only root can act as another user")
    assert seen["ordinary user"] == seen["first"]


def test_an_ordinary_user_switches_nothing(seen: dict[str, Any]) -> None:
    assert seen["refused"]["switch off what is off"] == {"error": NO_PERMISSION}


def test_without_mig_mode_nothing_is_created(seen: dict[str, Any]) -> None:
    # Which of its two reasons a driver names first was not measured.
    assert seen["refused"]["create"]["error"] in (NOT_SUPPORTED, NO_PERMISSION)
