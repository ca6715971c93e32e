"""What a site allows the hooks: a file that cannot be believed allows nothing."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from slurm_colloc.errors import StateError
from slurm_colloc.host.hooks.node_policy import (
    LIMIT_BYTES,
    REMOVED_KEYS,
    SETTINGS,
    NodePolicy,
    parse_plain_lines,
    read_policy,
)
from slurm_colloc.resources import data_path


@pytest.fixture
def path(short_directory: Path) -> Path:
    return short_directory / "node.toml"


def write(path: Path, text: str, mode: int = 0o644) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_an_empty_policy_is_the_built_in_one(path: Path) -> None:
    assert read_policy(write(path, "")) == NodePolicy()


def test_every_key_is_read(path: Path) -> None:
    text = """
    enabled = false
    modes = []
    partitions = ["gpu", "debug"]
    accounts = ["physics"]
    max_gpus = 2
    exclusive_process = true
    strict = true
    deadline_s = 8
    stop_s = 3.5
    audit_log = ""
    """
    assert read_policy(write(path, text)) == NodePolicy(
        enabled=False,
        modes=(),
        partitions=("gpu", "debug"),
        accounts=("physics",),
        max_gpus=2,
        exclusive_process=True,
        strict=True,
        deadline_s=8.0,
        stop_s=3.5,
        audit_log="",
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("enable = true", "unknown key 'enable'"),
        ("ignored = []", "unknown key 'ignored'"),
        ("enabled = 1", "no usable value for enabled"),
        ('enabled = "no"', "no usable value for enabled"),
        ('modes = ["mig"]', "no usable value for modes"),
        ('modes = "mps"', "no usable value for modes"),
        ('partitions = [""]', "no usable value for partitions"),
        ("accounts = [1]", "no usable value for accounts"),
        ("max_gpus = 0", "no usable value for max_gpus"),
        ("max_gpus = true", "no usable value for max_gpus"),
        ("deadline_s = 0", "no usable value for deadline_s"),
        ("deadline_s = nan", "no usable value for deadline_s"),
        ("stop_s = 20", "leaves no time"),
        ("mig_slow_s = false", "no usable value for mig_slow_s"),
        ("mig_slow_s = 3601", "no usable value for mig_slow_s"),
        ('audit_log = "hooks.log"', "no usable value for audit_log"),
        ("[enabled]", "no usable value for enabled"),
        ("enabled = ", "not TOML"),
        ("\x00", "not TOML"),
        ("#" * (LIMIT_BYTES + 1), "longer than 64 KiB"),
    ],
)
def test_what_is_not_understood_allows_nothing(path: Path, text: str, words: str) -> None:
    with pytest.raises(StateError, match=words):
        read_policy(write(path, text))


@pytest.mark.parametrize("key", REMOVED_KEYS)
@pytest.mark.parametrize("value", ["true", "7", '["whatever it was"]'])
def test_a_removed_key_is_ignored_and_said(path: Path, key: str, value: str) -> None:
    policy = read_policy(write(path, f'mig = "switch"\n{key} = {value}\n'))
    assert policy == NodePolicy(mig="switch", ignored=(REMOVED_KEYS[key],))
    assert REMOVED_KEYS[key].startswith(f"{key} is ignored, because ")
    assert key not in SETTINGS


def test_no_toml_in_no_known_encoding(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(StateError, match="not TOML"):
        read_policy(str(path))


@pytest.mark.parametrize("mode", [0o666, 0o664, 0o622])
def test_a_policy_that_others_may_write_is_not_trusted(path: Path, mode: int) -> None:
    with pytest.raises(StateError, match="may be written by others"):
        read_policy(write(path, "", mode))


def test_a_policy_below_a_directory_that_others_may_write_is_not_trusted(path: Path) -> None:
    name = write(path, "")
    path.parent.chmod(0o777)
    with pytest.raises(StateError, match="cannot be trusted"):
        read_policy(name)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root")
def test_a_policy_of_somebody_else_is_not_trusted(path: Path) -> None:
    name = write(path, "")
    os.chown(path, 65534, 65534)
    with pytest.raises(StateError, match="not a file of root's"):
        read_policy(name)


def test_links_fifos_and_directories_are_no_policy(path: Path) -> None:
    target = path.parent / "target.toml"
    write(target, "")
    path.symlink_to(target)
    with pytest.raises(StateError, match="cannot be read"):
        read_policy(str(path))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(StateError, match="not a file of root's"):
        read_policy(str(path))
    path.unlink()
    path.mkdir()
    with pytest.raises(StateError, match=r"no file of root's|cannot be read"):
        read_policy(str(path))


def test_a_missing_policy_is_said_so(path: Path) -> None:
    with pytest.raises(StateError, match=r"cannot be read \(No such file or directory\)"):
        read_policy(str(path))


@pytest.mark.parametrize(
    "line",
    [
        "enabled = true",
        "\tenabled=false # off",
        "# a comment = true",
        "deadline_s = 8",
        "deadline_s = 0.5",
        'audit_log = ""',
        'audit_log = "/a b#c" # there',
        "modes = []",
        'partitions = [ "gpu", "debug"]',
    ],
)
def test_plain_lines_are_read_as_toml_reads_them(line: str) -> None:
    text = f"strict = true\n{line}\n"
    assert parse_plain_lines(text) == tomllib.loads(text)


@pytest.mark.parametrize(
    "line",
    [
        "enabled = True",
        "strict = false",
        "deadline_s = 08",
        "deadline_s = 1_0",
        "deadline_s = nan",
        "deadline_s = +1",
        "deadline_s = 1e1",
        'audit_log = "/a\\u0041"',
        "audit_log = '/a'",
        'audit_log = """/a"""',
        'audit_log = "/\u00e4"',
        'audit_log = "/\x7f"',
        "modes = [\n]",
        'modes = ["mps",]',
        '"enabled" = true',
        "a.b = true",
        "[enabled]",
        "enabled = true\r",
        "# \x00",
        "enabled",
        "enabled = ",
        "enabled = true strict = true",
    ],
)
def test_all_else_is_left_to_tomls_own_parser(line: str) -> None:
    assert parse_plain_lines(f"strict = true\n{line}") is None


def test_the_policy_that_comes_with_us_is_plain() -> None:
    text = data_path("site-config", "node.toml").read_text(encoding="utf-8")
    assert parse_plain_lines(text) == tomllib.loads(text)
