"""Calibration files: whose counts, and what is refused of those that are partial or hostile."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import StateError, UsageProblem
from slurm_colloc.model.usage_profile import Calibration, ModeModel
from slurm_colloc.store.calibrations import (
    SHIPPED,
    build_calibration_mapping,
    calibration_path,
    choose_slug,
    find_calibration,
    parse_calibration,
    read_calibration,
    shipped_folder,
    user_folder,
    write_calibration,
)

H200 = "NVIDIA H200"
CALIBRATION = Calibration(
    gpu_model=H200,
    modes={
        "timeslice": ModeModel(turns=0.9, switching=0.2),
        "mps": ModeModel(waiting=0.8, width=1.4, narrowing=0.6, capacity=1.3, crowding=0.6),
    },
    residual=0.06,
    idle_power_w=75.0,
    power_limit_w=700.0,
    made_at=1.8e9,
    driver="550.90.07",
    packs=45,
)


def put(folder: Path, gpu_model: str = H200, **changes: Any) -> Path:
    path = calibration_path(folder, gpu_model)
    write_calibration(path, dataclasses.replace(CALIBRATION, gpu_model=gpu_model, **changes))
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read_calibration(put(tmp_path)) == CALIBRATION


def test_the_one_that_comes_with_csub_can_be_read() -> None:
    path = calibration_path(shipped_folder(), SHIPPED)
    found = read_calibration(path, expected="nvidia-h200")
    assert {"mps", "timeslice"} <= set(found.modes)


def test_the_users_comes_before_the_sites_and_that_before_ours(tmp_path: Path) -> None:
    root, site = tmp_path / "state", tmp_path / "site"
    assert find_calibration(H200, root, site).calibration.source == "shipped with csub"
    put(site, residual=0.2)
    found = find_calibration(H200, root, site)
    assert (found.calibration.residual, found.is_borrowed) == (0.2, False)
    assert found.calibration.source == f"the site's {site}/nvidia-h200.json"
    put(user_folder(root), residual=0.3)
    found = find_calibration("h200", root, site)
    assert found.calibration.residual == 0.3
    assert "the user's" in found.calibration.source
    assert found.problems == ()


def test_a_gpu_model_without_one_borrows_ours(tmp_path: Path) -> None:
    found = find_calibration("NVIDIA A100-SXM4-40GB", tmp_path, None)
    assert found.is_borrowed
    assert found.calibration.source == "borrowed from NVIDIA H200"
    assert found.calibration.gpu_model == H200, "planning tells by it that it is another GPU's"


@pytest.mark.parametrize(
    ("gpu", "slug"),
    [
        ("NVIDIA H200", "nvidia-h200"),
        ("h200", "nvidia-h200"),
        ("nvidia_h200", "nvidia-h200"),
        ("h100", None),
        ("h100_pcie", "nvidia-h100-pcie"),
        ("20", None),
        ("", None),
    ],
)
def test_slurms_type_is_a_part_of_the_name(gpu: str, slug: str | None) -> None:
    slugs = ["nvidia-h100-80gb-hbm3", "nvidia-h100-pcie", "nvidia-h200"]
    assert choose_slug(gpu, slugs) == slug


@pytest.mark.parametrize("name", ["zzz", "h200", "nvidia-h200-old"])
def test_a_file_of_another_name_does_not_count_and_is_told(tmp_path: Path, name: str) -> None:
    right = put(user_folder(tmp_path), residual=0.3)
    path = right.rename(right.with_name(f"{name}.json"))
    found = find_calibration(H200, tmp_path, None)
    assert found.calibration.source == "shipped with csub"
    assert found.problems == (
        f"{path}: gpu_model: it is one of 'NVIDIA H200', only nvidia-h200.json counts for it",
    )
    # It is of no interest for other GPUs, nor next to the one that counts.
    assert find_calibration("NVIDIA A100", tmp_path, None).problems == ()
    put(user_folder(tmp_path))
    assert find_calibration(H200, tmp_path, None).problems == ()


def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    site = tmp_path / "site"
    put(site)
    site.chmod(0)
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.seteuid(65534)
        found = find_calibration(H200, tmp_path / "state", site)
    finally:
        if is_root:
            os.seteuid(0)
        site.chmod(0o755)
    assert found.calibration.source == "shipped with csub"
    assert f"cannot read {site}: Permission denied" in found.problems
    file = tmp_path / "file"
    file.write_text("")
    found = find_calibration(H200, tmp_path / "state", file)
    assert found.problems == (f"cannot read {file}: Not a directory",)


def change(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def apply(mapping: dict[str, Any]) -> None:
        place = mapping
        *path, last = key.split(".")
        for name in path:
            place = place[name]
        place[last] = value

    return apply


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("schema", 2, "schema: it is of version 2, this csub reads 1"),
        ("schema", True, "schema: it is of version True"),
        ("modes", {}, "modes: must be an object with a sharing mode"),
        ("modes", {"magic": {}}, "modes: none of timeslice, mps, mig is there"),
        ("modes.mps", 3, "modes.mps: must be an object"),
        ("modes.mps", {"of_tomorrow": 1}, "modes.mps: none of turns, "),
        ("modes.mps.waiting", "0.3", "modes.mps.waiting: must be a number, is '0.3'"),
        ("modes.mps.waiting", -0.1, "modes.mps.waiting: must be from 0 to 100"),
        ("modes.mps.waiting", float("nan"), "modes.mps.waiting: must be from 0"),
        ("modes.mps.capacity", 1e-9, "modes.mps.capacity: must be 0 or at least 0.05"),
        ("modes.mps.width", 11, "modes.mps.width: must be from 0 to 10"),
        ("modes.mps.narrowing", float("inf"), "modes.mps.narrowing: must be from 0 to 100"),
        ("modes.mps.narrowing", 10**400, "modes.mps.narrowing: must be from 0 to 100"),
        ("residual", None, "residual: must be a number, is None"),
        ("residual", True, "residual: must be a number, is True"),
        ("residual", 50, "residual: must be from 0.0001 to 2, is 50"),
        ("gpu_model", "x" * 101, "gpu_model: must be a name"),
        ("gpu_model", "NVIDIA A100", "gpu_model: it is one of 'NVIDIA A100'"),
        ("driver", ["\x1b[2J"], "driver: must be a text, is ['\\x1b[2J']"),
        ("power_limit_w", 0, "power_limit_w: must be from 1"),
        ("power_limit_w", 75, "power_limit_w: must be above idle_power_w, which is 75, is 75"),
        ("idle_power_w", 700.5, "power_limit_w: must be above idle_power_w, which is 700.5"),
        ("residual", 0, "residual: must be from 0.0001 to 2, is 0"),
        ("modes.mps", {"waiting": 0, "width": 1.0}, "modes.mps: one of waiting, width must be"),
        ("modes.mps", {"waiting": -0.0, "dram": 0.0}, "modes.mps: one of waiting, dram must be"),
    ],
)
def test_a_file_that_is_wrong_is_named_and_the_next_one_counts(
    tmp_path: Path, key: str, value: Any, message: str
) -> None:
    path = put(user_folder(tmp_path))
    mapping = json.loads(path.read_text())
    change(key, value)(mapping)
    path.write_text(json.dumps(mapping))
    found = find_calibration(H200, tmp_path, None)
    assert found.calibration.source == "shipped with csub"
    (problem,) = found.problems
    assert problem.startswith(str(path))
    assert message in problem
    assert problem.isprintable()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is not JSON"),
        (b"[" * 100_000, "it is not JSON that csub reads: nested too deep"),
        (b'{"schema": 1' + b"0" * 5000 + b"}", "a number has too many digits"),
        (b'{"schema": 1, "packs": 1, "packs": 2}', "the key 'packs' comes twice"),
        (b"\xff\xfe", "it is not JSON .byte 0 is not UTF-8"),
        (b"[]", "a calibration is a JSON object"),
        (b"null", "a calibration is a JSON object"),
        (b" " * (256 * 1024 + 1), "it is larger than 256 kB"),
        (b'{"schema": 1, "modes": {"mps": {}}', "it is not JSON"),
    ],
)
def test_what_is_no_calibration_is_said_in_a_sentence(
    tmp_path: Path, data: bytes, message: str
) -> None:
    path = put(tmp_path)
    path.write_bytes(data)
    with pytest.raises(UsageProblem, match=message) as problem:
        read_calibration(path)
    assert "\n" not in str(problem.value)


def test_what_is_no_file_is_not_waited_for_and_said(tmp_path: Path) -> None:
    path = put(user_folder(tmp_path))
    path.unlink()
    os.mkfifo(path)
    said = f"cannot read {path}: it is a named pipe, no file"
    assert find_calibration(H200, tmp_path, None).problems == (said,)
    path.unlink()
    path.mkdir()
    said = f"cannot read {path}: it is a directory, no file"
    assert find_calibration(H200, tmp_path, None).problems == (said,)
    path.rmdir()
    path.symlink_to("/dev/zero")
    said = f"cannot read {path}: it is a device, no file"
    assert find_calibration(H200, tmp_path, None).problems == (said,)
    path.unlink()
    path.symlink_to(tmp_path / "gone")
    (problem,) = find_calibration(H200, tmp_path, None).problems
    assert problem == f"cannot read {path}: No such file or directory"


def test_what_a_newer_csub_adds_is_passed_over() -> None:
    mapping = build_calibration_mapping(CALIBRATION)
    mapping["of_tomorrow"] = mapping["modes"]["mps"]["of_tomorrow"] = {"a": [None]}
    mapping["modes"]["mps"]["quantum"] = "much"
    mapping["modes"]["teleport"] = None
    assert parse_calibration(mapping, "f") == CALIBRATION


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = put(tmp_path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_calibration(path) == CALIBRATION


def test_a_mode_in_which_jobs_disturb_each_other_by_copies_alone_is_one() -> None:
    mapping = build_calibration_mapping(CALIBRATION)
    mapping["modes"] = {"mig": dataclasses.asdict(ModeModel())}
    assert parse_calibration(mapping, "f").modes == {"mig": ModeModel()}


def test_what_would_be_refused_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "nvidia-h200.json"
    with pytest.raises(UsageProblem, match="residual"):
        write_calibration(path, dataclasses.replace(CALIBRATION, residual=float("nan")))
    assert not path.exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError):
        write_calibration(tmp_path / "file" / "nvidia-h200.json", CALIBRATION)
    folder = tmp_path / "nvidia-a100.json"
    folder.mkdir()
    with pytest.raises(StateError) as refused:
        write_calibration(folder, CALIBRATION)
    assert str(refused.value) == f"cannot write {folder}: Is a directory"


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
_KEYS = st.sampled_from(
    ["schema", "gpu_model", "modes", "residual", "idle_power_w", "made_at", "packs",
     "driver", "modes.mps", "modes.mps.waiting", "modes.mps.capacity", "modes.mps.narrowing",
     "modes.mps.width"]
)  # fmt: skip


@given(_KEYS, _JSON | st.floats(0.0, 3.0) | st.just("a text"))
def test_whatever_stands_there_is_read_or_refused(key: str, value: Any) -> None:
    mapping = build_calibration_mapping(CALIBRATION)
    change(key, value)(mapping)
    found = None
    with contextlib.suppress(UsageProblem):
        found = parse_calibration(mapping, "f")
    for model in () if found is None else found.modes.values():
        assert all(0 <= number <= 100 for number in dataclasses.asdict(model).values())
    assert found is None or 0 <= found.residual <= 2


def test_a_file_with_what_is_no_longer_told_is_read() -> None:
    mapping = {**build_calibration_mapping(CALIBRATION), "context_mb": 512}
    assert parse_calibration(mapping, "old.json") == CALIBRATION
