"""What a node's other services get from us: the unit that tidies up at boot, and log rotation."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from slurm_colloc.administration.node_files import build_node_files, install_files
from slurm_colloc.administration.slurm_conf import Places
from slurm_colloc.host.hooks.hook_job import READY, Checkpoint
from slurm_colloc.host.hooks.run_directory import RunDirectory

pytestmark = pytest.mark.root


@pytest.fixture
def installed(base: Path, node_tree: Path) -> Places:
    """The files of a node whose paths are all below a base."""
    places = Places(base=str(base))
    Path(places.prefix_path).parent.mkdir()
    shutil.copytree(node_tree, places.prefix_path, symlinks=True)
    install_files(places, build_node_files(places, ()), ())
    return places


def require(program: str) -> str:
    path = shutil.which(program, path="/usr/sbin:/usr/bin:/sbin:/bin")
    if path is None:
        pytest.skip(f"{program} is not installed")
    return path


def run(*argv: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, cwd="/")


def read_settings(path: str) -> dict[str, str]:
    """The settings of a unit; none of them stands twice in ours."""
    settings: dict[str, str] = {}
    for line in Path(path).read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            name, separator, value = line.partition("=")
            assert separator, line
            assert name not in settings, line
            settings[name] = value
    return settings


def test_systemd_finds_nothing_wrong_with_the_unit(installed: Places) -> None:
    ended = run(require("systemd-analyze"), "verify", installed.here(installed.unit_path))
    told = [line for line in ended.stderr.splitlines() if "slurm_colloc" in line]
    assert (ended.returncode, told) == (0, []), ended.stderr


def test_the_units_command_works_as_it_is_written(installed: Places) -> None:
    settings = read_settings(installed.here(installed.unit_path))
    assert settings["Type"] == "oneshot"
    assert os.access(settings["ConditionPathExists"], os.X_OK)
    link = installed.here(installed.wants_path)
    assert str(Path(link).readlink()) == installed.unit_path
    # A job from before the reboot.
    left = RunDirectory(installed.run_path, makes=True)
    left.write(Checkpoint("11", 65534, 65534, phase=READY, boot="another"))
    left.make_directory("11")
    left.close()
    environ = dict(word.split("=", 1) for word in shlex.split(settings["Environment"]))
    ended = run(*shlex.split(settings["ExecStart"]), environ=environ)
    assert (ended.returncode, ended.stderr) == (0, "")
    [job] = json.loads(ended.stdout)["jobs"]
    assert (job["job"], job["undone"]) == ("11", True)
    assert list(Path(installed.run_path, "jobs").iterdir()) == []
    assert not Path(installed.run_path, "11").exists()
    [line] = Path(installed.log_path).read_text().splitlines()
    assert json.loads(line)["hook"] == "recover"


def test_logrotate_takes_its_configuration_and_rotates_the_log(installed: Places) -> None:
    logrotate = require("logrotate")
    conf = installed.here(installed.logrotate_path)
    log = Path(installed.log_path)
    log.write_text('{"hook": "prolog"}\n')
    log.chmod(0o640)
    state = f"{installed.base}/logrotate.state"
    tried = run(logrotate, "--debug", "--state", state, conf)
    assert tried.returncode == 0, tried.stderr
    assert "error" not in tried.stderr, tried.stderr
    assert f"considering log {log}" in tried.stderr + tried.stdout
    done = run(logrotate, "--force", "--state", state, conf)
    assert (done.returncode, done.stderr) == (0, "")
    assert log.with_name(f"{log.name}.1").read_text() == '{"hook": "prolog"}\n'
    assert (log.read_text(), oct(log.stat().st_mode & 0o777)) == ("", "0o640")
