"""The matrix takes what the machine has, runs whole folders, and ends all that it started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .lifeline import __file__ as lifeline_file
from .releases import LEFT_OUT, RELEASES
from .roots import (
    CHECKOUT,
    MatrixImpossible,
    build_debootstrap_argv,
    choose_mirror,
    choose_privilege,
    choose_requirements,
)
from .runs import choose_tests, find_closing_line, find_failures

SECURITY = "Debian|Debian-Security|main|http://mirror.invalid/security/|Packages"
DEBIAN = "Debian|Debian|main|http://mirror.invalid/debian/|Packages"
TRANSLATIONS = "Debian|Debian|main|http://mirror.invalid/other/|Translations"
UBUNTU = "Ubuntu|Ubuntu|main|http://mirror.invalid/ubuntu/|Packages"


@pytest.mark.parametrize(
    ("targets", "mirror"),
    [
        ([SECURITY, TRANSLATIONS, DEBIAN], "http://mirror.invalid/debian"),
        ([UBUNTU], None),
        ([], None),
        (["", "one word"], None),
    ],
)
def test_packages_come_from_where_the_machine_gets_its_own(
    targets: list[str], mirror: str | None
) -> None:
    assert choose_mirror("\n".join(targets)) == mirror


def test_a_suite_younger_than_debootstrap_is_made_as_sid_is() -> None:
    tree = Path("/cache/root")
    known = build_debootstrap_argv("d", "trixie", tree, mirror=None, known=["sid", "trixie"])
    assert known[-2:] == ["trixie", "/cache/root"]
    young = build_debootstrap_argv("d", "forky", tree, mirror=None, known=["sid", "trixie"])
    assert young[-4:-1] == ["forky", "/cache/root", ""]
    assert young[-1].endswith("/sid")
    with_mirror = build_debootstrap_argv("d", "forky", tree, mirror="file:///m", known=["sid"])
    assert with_mirror[-2] == "file:///m"


def test_without_root_and_sudo_the_matrix_says_what_it_needs() -> None:
    assert choose_privilege(is_root=True, has_sudo=False) == ()
    assert choose_privilege(is_root=False, has_sudo=True)[0] == "sudo"
    with pytest.raises(MatrixImpossible, match="needs root"):
        choose_privilege(is_root=False, has_sudo=False)


def test_the_roots_get_what_tests_import_and_no_other_tools() -> None:
    wanted = choose_requirements((CHECKOUT / "pyproject.toml").read_text())
    names = {word.partition(">")[0] for word in wanted}
    assert {"typer", "jinja2", "pytest", "pytest-timeout", "hypothesis", "hatchling"} <= names
    assert not {"ruff", "mypy", "torch", "pytest-cov"} & names


def test_every_folder_of_tests_is_run_or_left_out_on_purpose() -> None:
    chosen = choose_tests(all_of_them=True)
    assert {"tests/cluster", "tests/scripts", "tests/runtime"} <= set(chosen)
    assert not [name for name in LEFT_OUT if not (CHECKOUT / "tests" / name).is_dir()]
    assert not [name for name in LEFT_OUT if f"tests/{name}" in chosen]


def test_the_main_paths_run_on_a_release_and_all_when_that_is_asked_for() -> None:
    usual = choose_tests(all_of_them=False)
    everything = choose_tests(all_of_them=True)
    assert usual[1].startswith("slurm and smoke and ")
    assert usual[2:] == everything[2:]
    assert "smoke" not in everything[1]


def test_every_release_has_a_suite_and_a_python_of_its_own() -> None:
    for values in zip(*[(r.slurm, r.suite, r.python) for r in RELEASES], strict=True):
        assert len(set(values)) == len(RELEASES)


@pytest.mark.parametrize(
    ("output", "closing"),
    [
        ("..\n== 3 passed in 1.02s ==\n", "== 3 passed in 1.02s =="),
        ("1 failed, 2 passed in 61.2s (0:01:01)\nx\n", "1 failed, 2 passed in 61.2s (0:01:01)"),
        ("sh: enter.sh: not found\n\n", "sh: enter.sh: not found"),
        ("", "it printed nothing"),
    ],
)  # fmt: skip
def test_a_run_is_told_by_pytests_closing_line(output: str, closing: str) -> None:
    assert find_closing_line(output) == closing


def test_of_a_failing_run_only_the_failures_are_told() -> None:
    output = "...F\n=== FAILURES ===\n___ test_a ___\n=== 1 failed in 2s ===\n"
    assert find_failures(output) == output.partition("\n")[2]
    assert find_failures("mount: denied\n") == "mount: denied\n"


def start(command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-IB", lifeline_file, "sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(("command", "status"), [("exit 3", 3), ("kill -KILL $$", 137)])
def test_a_command_that_ends_by_itself_gives_its_own_status(command: str, status: int) -> None:
    with start(command) as held:
        assert held.wait(60) == status


def test_a_command_whose_holder_is_gone_is_interrupted_and_may_clean_up() -> None:
    trap = "trap 'echo cleaned; exit 5' INT; echo up; while :; do sleep 0.1; done"
    with start(trap) as held:
        assert held.stdout is not None
        assert held.stdin is not None
        assert held.stdout.readline() == "up\n"
        held.stdin.close()
        assert held.wait(60) == 5
        assert held.stdout.read() == "cleaned\n"
