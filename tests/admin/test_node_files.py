from __future__ import annotations

import dataclasses
import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.__main__ import run
from slurm_colloc.administration.node_files import (
    build_constants,
    build_node_files,
    compare_files,
    install_files,
    read_constants,
    read_record,
    remove_files,
    render_hook,
)
from slurm_colloc.administration.slurm_conf import BASE_VARIABLE, HookPlan, Places
from slurm_colloc.cli.admin_hooks import CHANGE_NEEDED
from slurm_colloc.errors import NodeError, StateError
from slurm_colloc.host.hooks.node_policy import NodePolicy, read_policy
from slurm_colloc.resources import data_path

CONFIG = """\
Configuration data as of 2026-01-01T00:00:00
Epilog                  = {epilog}
Prolog                  = {prolog}
PrologEpilogTimeout     = 65534
PrologFlags             = Alloc
SlurmdUser              = root(0)
SLURM_CONF              = {conf}
SLURM_VERSION           = 22.05.8
"""


@dataclasses.dataclass(frozen=True)
class Site:
    """A node below a directory, and what its Slurm would say."""

    base: Path
    places: Places
    capsys: pytest.CaptureFixture[str]

    @property
    def etc(self) -> Path:
        return Path(self.places.etc_path)

    def tell(self, prolog: str = "(null)", epilog: str = "(null)") -> Path:
        path = self.base / "config"
        conf = self.base / "slurm.conf"
        path.write_text(CONFIG.format(prolog=prolog, epilog=epilog, conf=conf))
        return path

    def csub(self, *words: str, status: int = 0) -> str:
        assert run(["admin", *words]) == status
        captured = self.capsys.readouterr()
        assert status in (0, CHANGE_NEEDED) or captured.err.startswith("csub: error: ")
        assert captured.err.count("\n") <= 1
        return captured.out + captured.err

    def part(self, command: str, part: str, *words: str, status: int = 0) -> str:
        config = str(self.base / "config")
        return self.csub(command, part, "--slurm-config", config, *words, status=status)


@pytest.fixture
def site(
    base: Path,
    places: Places,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Site:
    monkeypatch.setenv(BASE_VARIABLE, str(base))
    monkeypatch.delenv("SLURM_COLLOC_DRIVER", raising=False)
    found = Site(base, places, capsys)
    found.tell()
    return found


def list_names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def list_tree(directory: Path) -> dict[str, tuple[int, bytes | str | None]]:
    found: dict[str, tuple[int, bytes | str | None]] = {}
    for path in sorted(directory.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_symlink():
            found[str(path)] = (mode, str(path.readlink()))
        else:
            found[str(path)] = (mode, path.read_bytes() if path.is_file() else None)
    return found


def list_times(directory: Path) -> dict[str, tuple[int, int]]:
    """When each file was last written or changed otherwise, and which file it is."""
    paths = [directory, *directory.rglob("*")]
    return {str(path): (path.lstat().st_ctime_ns, path.lstat().st_ino) for path in paths}


@pytest.mark.root
def test_a_dry_run_changes_nothing_and_shows_both_parts(site: Site) -> None:
    before = list_tree(site.base)
    config = str(site.base / "config")
    text = site.csub("install-hooks", "--dry-run", "--slurm-config", config)
    assert f"would write    {site.etc}/hooks/prolog.sh" in text
    assert f"Prolog={site.etc}/hooks/prolog.sh" in text
    assert list_tree(site.base) == before


@pytest.mark.root
def test_what_is_installed_is_roots_and_has_this_nodes_paths(site: Site) -> None:
    site.part("install-hooks", "--node")
    for kind in ("prolog", "epilog"):
        hook = site.etc / "hooks" / f"{kind}.sh"
        status = hook.stat()
        assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (0, 0, 0o755)
        assert read_constants(hook.read_text()) == {
            "prefix": f"{site.base}/opt/slurm_colloc",
            "run": f"{site.base}/run/slurm_colloc",
            "policy": f"{site.etc}/node.toml",
            "driver": "",
        }
        assert subprocess.run(["sh", "-n", hook], check=False).returncode == 0
    policy = read_policy(str(site.etc / "node.toml"))
    assert policy == NodePolicy(
        audit_log=f"{site.base}/var/log/slurm_colloc/hooks.log",
        state_directory=f"{site.base}/var/lib/slurm_colloc",
    )
    unit = Path(site.places.unit_path)
    assert f"ExecStart={site.base}/opt/slurm_colloc/bin/python -I -B" in unit.read_text()
    assert Path(site.places.wants_path).resolve() == unit


@pytest.mark.root
def test_installing_again_changes_nothing_and_keeps_the_sites_policy(site: Site) -> None:
    site.part("install-hooks", "--node")
    policy = site.etc / "node.toml"
    policy.write_text("enabled = false\n")
    before = list_tree(site.base)
    text = site.part("install-hooks", "--node")
    assert list_tree(site.base) == before
    assert f"keep           {policy}" in text
    assert "write " not in text


@pytest.mark.root
def test_installing_again_writes_no_file_anew(site: Site) -> None:
    first = site.part("install-hooks", "--node")
    assert first.splitlines()[-1] == "changed"
    before = list_times(site.base)
    second = site.part("install-hooks", "--node")
    assert second.splitlines()[-1] == "nothing to change"
    assert {line.split()[0] for line in second.splitlines()[:-1]} == {"same", "keep"}
    assert list_times(site.base) == before


@pytest.mark.root
def test_a_check_tells_by_its_exit_status_what_installing_would_do(site: Site) -> None:
    before = list_times(site.base)
    text = site.part("install-hooks", "--node", "--check", status=CHANGE_NEEDED)
    assert f"would write    {site.etc}/hooks/prolog.sh" in text
    assert text.splitlines()[-1] == "would change"
    assert list_times(site.base) == before
    site.part("install-hooks", "--node")
    before = list_times(site.base)
    assert "nothing to change" in site.part("install-hooks", "--node", "--check")
    hook = site.etc / "hooks" / "epilog.sh"
    hook.chmod(0o700)
    text = site.part("install-hooks", "--node", "--check", status=CHANGE_NEEDED)
    assert [line for line in text.splitlines() if line.startswith("would")] == [
        f"would replace  {hook} (it differs)",
        "would change",
    ]
    hook.chmod(0o755)
    Path(site.places.prefix_path, "bin", "python").unlink()
    assert "which the hooks start" in site.part("install-hooks", "--node", "--check", status=5)


@pytest.mark.root
def test_a_record_that_is_missing_or_older_is_written_again(site: Site) -> None:
    site.part("install-hooks", "--node")
    record = site.etc / "installed.json"
    whole = json.loads(record.read_text())
    for text in (None, json.dumps({**whole, "version": "0.0"})):
        record.unlink()
        if text is not None:
            record.write_text(text)
        site.part("install-hooks", "--node", "--check", status=CHANGE_NEEDED)
        assert site.part("install-hooks", "--node").splitlines()[-1] == "changed"
        assert json.loads(record.read_text())["version"] == whole["version"]
        site.part("install-hooks", "--node", "--check")


@pytest.mark.root
def test_a_check_needs_no_root(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.part("install-hooks", "--node")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    site.part("install-hooks", "--node", "--check")


@pytest.mark.root
def test_the_json_says_whether_something_was_changed(site: Site) -> None:
    def read(*words: str, status: int = 0) -> dict[str, Any]:
        return dict(json.loads(site.part("install-hooks", "--json", *words, status=status)))

    would = read("--node", "--check", status=CHANGE_NEEDED)
    did = read("--node")
    again = read("--node")
    assert [one["changed"] for one in (would, did, again)] == [True, True, False]
    assert [one["only_said"] for one in (would, did, again)] == [True, False, False]
    assert would["steps"] == did["steps"]
    assert {
        "part": "node",
        "action": "write",
        "path": f"{site.etc}/hooks/prolog.sh",
        "detail": "mode 755",
    } in did["steps"]
    assert {step["action"] for step in again["steps"]} == {"same", "keep"}
    # Lines that are only named change nothing, and are missing all the same.
    told = read("--controller")
    assert (told["changed"], len(told["steps"])) == (False, 3)
    assert read("--controller", "--check", status=CHANGE_NEEDED)["changed"]


@pytest.mark.root
def test_lines_that_slurm_has_not_read_yet_are_not_written_again(site: Site) -> None:
    conf = site.base / "slurm.conf"
    conf.write_text("ClusterName=c\n")
    words = ("install-hooks", "--controller", "--slurm-conf", str(conf))
    text = site.part(*words, "--check", status=CHANGE_NEEDED)
    assert f"+Prolog={site.etc}/hooks/prolog.sh" in text
    assert conf.read_text() == "ClusterName=c\n"
    assert "\nchanged" in site.part(*words)
    before = list_times(site.base)
    for extra in ((), ("--check",)):
        text = site.part(*words, *extra)
        assert "scontrol reconfigure is still to be called" in text
        assert text.splitlines()[-1] == "nothing to change"
    assert list_times(site.base) == before
    # One of the lines is lost: that one alone is put back.
    lines = [line for line in conf.read_text().splitlines() if not line.startswith("Epilog=")]
    conf.write_text("\n".join(lines) + "\n")
    text = site.part(*words)
    assert [line for line in text.splitlines() if line.startswith("+E")] == [
        f"+Epilog={site.etc}/hooks/epilog.sh"
    ]
    assert "+Prolog=" not in text


@pytest.mark.root
def test_a_changed_hook_is_replaced(site: Site) -> None:
    site.part("install-hooks", "--node")
    hook = site.etc / "hooks" / "prolog.sh"
    hook.write_text("#!/bin/sh\nexit 1\n")
    assert f"replace        {hook}" in site.part("install-hooks", "--node")
    assert "lifecycle prolog" in hook.read_text()


@pytest.mark.root
def test_undoing_leaves_what_was_there_before_and_the_policy(site: Site) -> None:
    before = list_tree(site.base)
    site.part("install-hooks", "--node")
    site.part("uninstall", "--node")
    after = list_tree(site.base)
    for path in (f"{site.etc}", f"{site.etc}/node.toml"):
        assert after.pop(path)
    for path in list(after):
        # /etc itself.
        if f"{site.etc}".startswith(path + "/"):
            after.pop(path)
    assert after == before


@pytest.mark.root
def test_ours_goes_into_the_sites_directory_and_alone_out_of_it(site: Site) -> None:
    for kind in ("prolog", "epilog"):
        directory = site.base / f"{kind}.d"
        directory.mkdir()
        (directory / "50-own.sh").write_text("#!/bin/sh\n")
    site.tell(f"{site.base}/prolog.d/*", f"{site.base}/epilog.d/*")
    site.part("install-hooks", "--node")
    assert list_names(site.base / "prolog.d") == ["00-slurm_colloc.sh", "50-own.sh"]
    assert list_names(site.base / "epilog.d") == ["50-own.sh", "zz-slurm_colloc.sh"]
    site.part("uninstall", "--node")
    assert list_names(site.base / "prolog.d") == ["50-own.sh"]
    assert list_names(site.base / "epilog.d") == ["50-own.sh"]


@pytest.mark.root
def test_a_pattern_is_never_left_without_a_script(site: Site) -> None:
    (site.base / "prolog.d").mkdir()
    (site.base / "epilog.d").mkdir()
    site.tell(f"{site.base}/prolog.d/*", f"{site.base}/epilog.d/*")
    site.part("install-hooks", "--node")
    before = list_tree(site.base)
    text = site.part("uninstall", "--node", status=5)
    assert f"Prolog={site.base}/prolog.d/*, which would match nothing" in text
    assert "first csub admin uninstall --controller" in text
    assert list_tree(site.base) == before


@pytest.mark.root
def test_a_script_that_slurm_names_is_not_removed(site: Site) -> None:
    site.part("install-hooks", "--node")
    before = list_tree(site.base)
    site.tell(prolog=f"{site.etc}/hooks/prolog.sh")
    assert "the script itself" in site.part("uninstall", "--node", status=5)
    assert list_tree(site.base).keys() == before.keys()


@pytest.mark.root
def test_a_script_that_only_the_nodes_own_file_names_is_not_removed(site: Site) -> None:
    site.part("install-hooks", "--node")
    (site.base / "slurm.conf").write_text(f"Epilog={site.etc}/hooks/epilog.sh\n")
    assert "Epilog=" in site.part("uninstall", "--node", status=5)
    (site.base / "slurm.conf").write_text(f"#Epilog={site.etc}/hooks/epilog.sh\n")
    site.part("uninstall", "--node")


@pytest.mark.root
def test_hooks_stay_while_a_job_needs_its_epilog(site: Site) -> None:
    site.part("install-hooks", "--node")
    jobs = Path(site.places.run_path, "jobs")
    jobs.mkdir(parents=True)
    (jobs / "4711.json").write_text("{}")
    assert "job 4711 of this node" in site.part("uninstall", "--node", status=5)
    assert (site.etc / "hooks" / "epilog.sh").exists()


@pytest.mark.root
def test_one_script_of_the_site_is_kept_behind_a_link(site: Site) -> None:
    script = site.base / "site.sh"
    script.write_text("#!/bin/sh\n")
    conf = site.base / "slurm.conf"
    conf.write_text(f"ClusterName=c\nProlog={script}\n")
    conf.chmod(0o640)
    site.tell(prolog=str(script))
    site.part("install-hooks", "--node")
    directory = site.etc / "hooks" / "prolog.d"
    assert list_names(directory) == ["00-slurm_colloc.sh", "50-site"]
    assert (directory / "50-site").resolve() == script
    text = site.part("install-hooks", "--controller", "--slurm-conf", str(conf))
    assert f"+Prolog={directory}/*" in text
    assert stat.S_IMODE(conf.stat().st_mode) == 0o640
    (backup,) = site.base.glob("slurm.conf.before-slurm_colloc.*")
    assert backup.read_text() == f"ClusterName=c\nProlog={script}\n"
    # As a node that joins later.
    site.tell(prolog=f"{directory}/*", epilog=f"{site.etc}/hooks/epilog.sh")
    site.part("install-hooks", "--node")
    (directory / "50-site").unlink()
    assert "--site-prolog FILE" in site.part("install-hooks", "--node", status=2)
    site.part("install-hooks", "--node", "--site-prolog", str(script))
    assert (directory / "50-site").resolve() == script
    # A line of ours that somebody has written a second time is not silently left.
    installed = conf.read_text()
    conf.write_text(f"{installed}Prolog={directory}/*\n")
    refused = site.part("uninstall", "--controller", "--slurm-conf", str(conf), status=5)
    assert "take that line out by hand" in refused
    conf.write_text(installed)
    site.part("uninstall", "--controller", "--slurm-conf", str(conf))
    assert conf.read_text() == f"ClusterName=c\nProlog={script}\n"


@pytest.mark.root
def test_an_image_gets_files_that_name_the_nodes_own_paths(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(BASE_VARIABLE)
    site.part("install-hooks", "--node", "--root", str(site.base))
    constants = read_constants((site.base / "etc/slurm_colloc/hooks/prolog.sh").read_text())
    assert constants == build_constants(Places())
    wants = site.base / "etc/systemd/system/multi-user.target.wants/slurm_colloc-recover.service"
    assert str(wants.readlink()) == "/etc/systemd/system/slurm_colloc-recover.service"
    site.part("uninstall", "--node", "--root", str(site.base))
    assert not wants.is_symlink()


@pytest.mark.root
def test_a_directory_that_others_may_write_gets_nothing(site: Site) -> None:
    site.etc.mkdir(parents=True)
    site.etc.chmod(0o777)
    assert "may be written by others" in site.part("install-hooks", "--node", status=5)
    assert list_names(site.etc) == []


@pytest.mark.root
@pytest.mark.parametrize("name", ["prolog.sh", "epilog.sh"])
def test_a_planted_link_is_neither_followed_nor_replaced(site: Site, name: str) -> None:
    victim = site.base / "victim"
    victim.write_text("precious")
    (site.etc / "hooks").mkdir(parents=True)
    (site.etc / "hooks" / name).symlink_to(victim)
    assert "not a plain file" in site.part("install-hooks", "--node", status=5)
    assert victim.read_text() == "precious"
    assert list_names(site.etc / "hooks") == [name]


@pytest.mark.root
def test_without_an_interpreter_no_hook_is_installed(site: Site) -> None:
    Path(site.places.prefix_path, "bin", "python").unlink()
    assert "which the hooks start" in site.part("install-hooks", "--node", status=5)
    assert not site.etc.exists()


@pytest.mark.root
def test_a_removal_that_was_cut_short_goes_on(site: Site) -> None:
    site.part("install-hooks", "--node")
    (site.etc / "hooks" / "prolog.sh").unlink()
    site.part("uninstall", "--node")
    assert not (site.etc / "hooks").exists()
    assert "no hooks are installed here" in site.part("uninstall", "--node")


@pytest.mark.root
def test_a_damaged_record_is_one_sentence(site: Site) -> None:
    site.part("install-hooks", "--node")
    (site.etc / "installed.json").write_text("[]")
    assert "is damaged" in site.part("uninstall", "--node", status=6)


@pytest.mark.root
def test_files_are_compared_and_removed_as_recorded(places: Places) -> None:
    hooks = [HookPlan("prolog", f"{places.hooks_path}/p"), HookPlan("epilog", f"{places.base}/e")]
    files = build_node_files(places, hooks)
    install_files(places, files, hooks)
    assert {step.action for step in compare_files(places, files)} == {"same", "keep"}
    record = read_record(places)
    assert record is not None
    assert json.loads(Path(places.record_path).read_text()) == record
    remove_files(places, record)
    assert not Path(f"{places.base}/e").exists()
    assert {step.action for step in compare_files(places, files)} >= {"write", "keep"}


@pytest.mark.parametrize("kind", ["prolog", "epilog"])
def test_the_scripts_have_each_constant_once(kind: str) -> None:
    text = data_path("hooks", f"{kind}.sh").read_text()
    constants = dict.fromkeys(("prefix", "run", "policy", "driver"), "/a/b")
    assert read_constants(render_hook(text, constants)) == constants
    with pytest.raises(StateError, match="no single line prefix="):
        render_hook(text.replace("prefix=", "other="), constants)
    with pytest.raises(ValueError, match="not a plain path"):
        render_hook(text, {**constants, "run": "/a b"})


def test_a_hook_without_a_place_is_not_installed() -> None:
    with pytest.raises(NodeError, match="no way"):
        build_node_files(Places(), [HookPlan("prolog", "", problem="no way")])


def test_someone_else_than_root_is_told_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config"
    config.write_text(CONFIG.format(prolog="(null)", epilog="(null)", conf="/x"))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert run(["admin", "install-hooks", "--node", "--slurm-config", str(config)]) == 2
    assert "only root can install hooks" in capsys.readouterr().err
