"""State that another user could have changed, or has: csub submits nothing that is in it."""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_colloc.diagnosis.doctor_job import try_state
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.settings import Settings
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.atomic_files import make_directory
from slurm_colloc.store.pack_directory import write_ended

from ..calls import run_csub
from ..packs import build_member, build_pack, write_packs

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two other users"),
]

VICTIM, COLLEAGUE, GROUP = 64921, 64922, 64920
NOT_USED = "and csub does not use it"
IN_ITS_PLACE = "is not used, because another user could put something else in its place"

_COMMANDS = {
    # It says in whose name it was called, and with what.
    "sbatch": 'exec 3>>"${0%/*}/../calls"; echo "$(id -u) $*" >&3; cat >&3; echo 4799',
    "squeue": "true",
    "sacct": "true",
    "sinfo": 'echo "gpu*|64|512000|gpu:4|1-00:00:00|n/a"',
    "scontrol": "echo ClusterName = here; echo JobRequeue = 1; echo MaxArraySize = 1001",
}


def own(path: Path, uid: int, gid: int) -> None:
    for each in (path, *path.rglob("*")):
        os.chown(each, uid, gid, follow_symlinks=False)


@dataclass
class Victim:
    """A user without an account, in a group of colleagues; Slurm's commands are five scripts."""

    home: Path

    @property
    def state(self) -> Path:
        return self.home / "state" / "slurm_colloc"

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": f"{self.home / 'bin'}:{os.defpath}",
            "HOME": str(self.home),
            "SLURM_CONF": str(self.home / "slurm.conf"),
            "XDG_STATE_HOME": str(self.home / "state"),
            "LC_ALL": "C.UTF-8",
        }

    def csub(self, *words: str, uid: int = VICTIM) -> subprocess.CompletedProcess[str]:
        gid = pwd.getpwuid(uid).pw_gid if uid < VICTIM else uid
        return run_csub(*words, environment=self.environment, directory=self.home, user=(uid, gid))

    def submitted(self) -> str:
        return (self.home / "calls").read_text()


def act_as_colleague(script: str, directory: Path) -> None:
    """Run a shell script as another member of the group."""
    subprocess.run(
        ["sh", "-euc", script],
        user=COLLEAGUE, group=COLLEAGUE, extra_groups=[GROUP], umask=0,
        cwd=directory, check=True,
    )  # fmt: skip


@pytest.fixture
def victim() -> Iterator[Victim]:
    home = Path(tempfile.mkdtemp(prefix="planted", dir="/var/tmp"))
    home.chmod(0o755)
    (home / "bin").mkdir()
    for name, body in _COMMANDS.items():
        (home / "bin" / name).write_text(f"#!/bin/sh\n{body}\n")
        (home / "bin" / name).chmod(0o755)
    (home / "slurm.conf").write_text("ClusterName=here\n")
    (home / "calls").touch()
    found = Victim(home)
    try:
        State(found.state, "here").prepare()
        # The group gets there.
        for folder in (home / "state", found.state):
            folder.chmod(0o755)
        own(home, VICTIM, GROUP)
        yield found
    finally:
        shutil.rmtree(home)


def write(root: Path, uid: int, submission: str, job_id: str) -> Path:
    """Have a user submit one member whose node fails before it has begun; the pack."""
    member = build_member(1, b"#!/bin/sh\nexit 0\n", requeue=True)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        made = Path(folder, "state")
        new = build_pack(submission, members=[member])
        write_ended(write_packs(State(made, "here"), new, job_id=job_id), SlurmJobState.NODE_FAIL)
        own(made, uid, GROUP)
        shutil.copytree(made, root, dirs_exist_ok=True)
    for path in (root, *root.rglob("*")):
        if submission in str(path) or job_id in path.name or path.stat().st_uid == 0:
            own(path, uid, GROUP)
    return root / "packs" / f"{submission}.0"


def plant(home: Path) -> Path:
    """A colleague's state directory with such a pack, open to all."""
    root = home / "planted"
    write(root, COLLEAGUE, "theirs", "4711")
    open_up(root)
    return root


def open_up(root: Path, mode: int = 0o777) -> None:
    for each in (root, *root.rglob("*")):
        each.chmod(mode)


def test_packs_that_a_colleague_has_put_there_are_not_submitted(victim: Victim) -> None:
    plant(victim.home)
    # Project space: the group can write into the state directory.
    victim.state.chmod(0o775)
    act_as_colleague(
        "mv packs packs.away; mv open open.away; cp -rp ../../planted/packs ../../planted/open .",
        victim.state,
    )
    for _ in range(2):
        ended = victim.csub("queue")
        assert ended.returncode == 6
        named = f"{victim.state}/open", f"{victim.state}/packs"
        assert any(
            f"csub: error: {path} belongs to uid {COLLEAGUE}, not to uid {VICTIM}, {NOT_USED}: "
            "look at what is in it, and move it away\n" in ended.stderr
            for path in named
        ), ended.stderr
        assert victim.submitted() == ""
    assert stat.S_IMODE(victim.state.stat().st_mode) == 0o755


def test_the_same_packs_of_the_victims_own_are_submitted_again(victim: Victim) -> None:
    """Otherwise the test above would say nothing."""
    write(victim.state, VICTIM, "mine", "4711")
    ended = victim.csub("queue")
    assert "submitted again as job 4799" in ended.stderr
    assert victim.submitted().startswith(f"{VICTIM} ")


def test_a_pack_of_another_user_is_left_out_and_others_are_served(victim: Victim) -> None:
    path = write(victim.state, COLLEAGUE, "theirs", "4711")
    write(victim.state, VICTIM, "mine", "4712")
    open_up(path)
    ended = victim.csub("queue", "--all")
    assert f"the pack {path} belongs to uid {COLLEAGUE}, not to uid {VICTIM}" in ended.stderr
    assert ended.returncode == 6
    assert "4712/1" in ended.stdout
    assert "4711" not in ended.stdout
    assert "submitted again as job 4799" in ended.stderr
    assert len([line for line in victim.submitted().splitlines() if line.startswith("64")]) == 1
    assert path.name not in victim.submitted()
    own(path, VICTIM, GROUP)
    path.chmod(0o770)
    ended = victim.csub("queue", "--all")
    told = f"the pack {path} can be changed by the group {GROUP}, {NOT_USED}: look at what is in it"
    assert f"{told}, then chmod go-w {path}\n" in ended.stderr
    assert ended.returncode == 6


def test_a_state_directory_that_others_can_write_into_is_closed_and_that_is_said_once(
    victim: Victim,
) -> None:
    victim.state.chmod(0o777)
    first, second = victim.csub("queue"), victim.csub("queue")
    assert first.stderr == (
        f"csub: the state directory {victim.state} had mode 0777, by which others could write into "
        "it: it has 0755 now\n"
    )
    assert (first.returncode, second.returncode, second.stderr) == (0, 0, "")
    assert stat.S_IMODE(victim.state.stat().st_mode) == 0o755


@pytest.mark.parametrize("name", ["packs", "open", "jobs", "making", "profiles", "snapshots"])
def test_what_the_group_can_change_is_refused(victim: Victim, name: str) -> None:
    path = victim.state / name
    path.mkdir(exist_ok=True)
    os.chown(path, VICTIM, GROUP)
    path.chmod(0o775)
    ended = victim.csub("queue")
    assert ended.stderr == (
        f"csub: error: {path} can be changed by the group {GROUP}, {NOT_USED}: look at what is in "
        f"it, then chmod go-w {path}\n"
    )
    assert ended.returncode == 6


def test_a_batch_script_that_a_colleague_has_kept_there_is_refused(victim: Victim) -> None:
    victim.state.chmod(0o777)
    act_as_colleague('echo "{}" >script.single.json', victim.state)
    ended = victim.csub("queue")
    assert f"{victim.state}/script.single.json belongs to uid {COLLEAGUE}" in ended.stderr
    assert ended.returncode == 6


def test_a_directory_on_the_way_that_the_group_can_change_is_refused(victim: Victim) -> None:
    root = plant(victim.home)
    folder = victim.home / "state"
    folder.chmod(0o2775)
    told = (
        f"csub: error: {victim.state} {IN_ITS_PLACE}: {folder} can be changed by the group "
        f"{GROUP}: chmod go-w {folder}, or set state_dir in the settings, or XDG_STATE_HOME, to "
        "another place\n"
    )
    ended = victim.csub("queue")
    assert (ended.stderr, ended.returncode) == (told, 6)
    # What a colleague would put there is that colleague's, and is only looked at.
    act_as_colleague(f"mv slurm_colloc old; cp -rp {root} slurm_colloc", folder)
    victim.csub("queue")
    assert victim.submitted() == ""
    # Nor can an older one be put back.
    act_as_colleague("mv slurm_colloc new; mv old slurm_colloc", folder)
    ended = victim.csub("queue")
    assert (ended.stderr, ended.returncode) == (told, 6)
    # Where each may remove only what is theirs, it is safe.
    folder.chmod(0o3775)
    assert victim.csub("queue").returncode == 0


def test_one_that_root_has_opened_to_a_group_is_for_root_to_close(victim: Victim) -> None:
    folder = victim.home / "state"
    os.chown(folder, 0, GROUP)
    folder.chmod(0o775)
    ended = victim.csub("queue")
    assert (
        f"{folder} can be changed by the group {GROUP}: have root call chmod go-w" in ended.stderr
    )
    assert ended.returncode == 6
    folder.chmod(0o777)
    assert f"{folder} can be changed by every user: " in victim.csub("queue").stderr
    folder.chmod(0o755)
    assert victim.csub("queue").returncode == 0


def test_a_directory_of_another_user_on_the_way_is_refused(victim: Victim) -> None:
    os.chown(victim.home / "state", COLLEAGUE, GROUP)
    ended = victim.csub("queue")
    assert ended.stderr == (
        f"csub: error: {victim.state} {IN_ITS_PLACE}: {victim.home}/state belongs to uid "
        f"{COLLEAGUE}: set state_dir in the settings, or XDG_STATE_HOME, to another place, on the "
        "way to which all directories are yours or root's\n"
    )
    assert ended.returncode == 6


def find_user_with_group() -> pwd.struct_passwd | None:
    """An account of this machine whose group is its own alone."""
    for user in pwd.getpwall():
        group = grp.getgrgid(user.pw_gid)
        if user.pw_uid and group.gr_name == user.pw_name and not group.gr_mem:
            return user
    return None


def test_a_group_of_one_user_is_that_user(victim: Victim) -> None:
    user = find_user_with_group()
    if user is None:
        pytest.skip("no account here has a group of its own")
    own(victim.home, user.pw_uid, user.pw_gid)
    folders = (victim.home, victim.home / "state", victim.state / "packs")
    for folder in folders:
        folder.chmod(0o775)
    assert victim.csub("queue", uid=user.pw_uid).returncode == 0
    for folder in folders:
        os.chown(folder, user.pw_uid, GROUP)
        ended = victim.csub("queue", uid=user.pw_uid)
        assert f"{folder} can be changed by the group {GROUP}" in ended.stderr
        assert ended.returncode == 6
        os.chown(folder, user.pw_uid, user.pw_gid)


def test_a_link_on_the_way_counts_as_what_it_is_and_what_it_leads_to(victim: Victim) -> None:
    real = victim.home / "scratch" / "deep"
    real.mkdir(parents=True)
    own(real.parent, VICTIM, GROUP)
    state = victim.home / "state"
    state.rename(real / "state")
    # Relative, and back up behind a link.
    (victim.home / "link").symlink_to(real)
    state.symlink_to("link/../deep/state")
    os.chown(victim.home / "link", VICTIM, GROUP, follow_symlinks=False)
    os.chown(state, 0, 0, follow_symlinks=False)
    assert victim.csub("queue").returncode == 0
    real.chmod(0o777)
    ended = victim.csub("queue")
    assert f"{real} can be changed by every user: chmod go-w {real}, or set" in ended.stderr
    assert ended.returncode == 6
    real.chmod(0o755)
    os.chown(victim.home / "link", COLLEAGUE, GROUP, follow_symlinks=False)
    ended = victim.csub("queue")
    assert f"the link {victim.home}/link belongs to uid {COLLEAGUE}" in ended.stderr
    assert ended.returncode == 6


def test_a_link_in_the_state_is_followed_where_it_is_the_owners_with_all_behind_it(
    victim: Victim,
) -> None:
    packs, there = victim.state / "packs", victim.home / "there"
    packs.rename(there)
    packs.symlink_to(there)
    os.chown(packs, VICTIM, GROUP, follow_symlinks=False)
    assert victim.csub("queue").returncode == 0
    there.chmod(0o777)
    ended = victim.csub("queue")
    assert f"{packs}, which leads to {there}, can be changed by every user" in ended.stderr
    assert ended.returncode == 6
    there.chmod(0o700)
    os.chown(packs, COLLEAGUE, GROUP, follow_symlinks=False)
    ended = victim.csub("queue")
    assert f"{packs} belongs to uid {COLLEAGUE}, not to uid {VICTIM}" in ended.stderr
    assert ended.returncode == 6


def test_a_pack_that_is_not_the_owners_is_not_shown_to_those_who_help(victim: Victim) -> None:
    path = write(victim.state, COLLEAGUE, "theirs", "4711")
    write(victim.state, VICTIM, "mine", "4712")
    ended = victim.csub("queue", "--all", uid=0)
    assert "4712/1" in ended.stdout
    assert "4711" not in ended.stdout
    assert f"the pack {path} belongs to uid {COLLEAGUE}, not to uid {VICTIM}" in ended.stderr
    assert ended.returncode == 6


@pytest.mark.parametrize(("uid", "mode"), [(COLLEAGUE, 0o755), (VICTIM, 0o777)])
def test_a_runner_does_not_run_a_pack_that_another_user_could_have_put_there(
    victim: Victim, uid: int, mode: int
) -> None:
    pack = write(victim.state, uid, "theirs", "4711")
    open_up(pack, mode)
    ended = subprocess.run(
        [sys.executable, "-IB", "-m", "slurm_colloc.runtime", pack],
        user=VICTIM, group=VICTIM, extra_groups=[], env=victim.environment, cwd="/",
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 6
    assert f"csub: error: the pack {pack} " in ended.stderr
    assert NOT_USED in ended.stderr
    assert not (pack / "attempt").exists()


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory of the caller's own to which every user gets."""
    folder = Path(tempfile.mkdtemp(prefix="planted", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def test_the_doctor_says_so(reachable: Path) -> None:
    folder = reachable / "open"
    folder.mkdir()
    folder.chmod(0o777)
    trouble = try_state(Settings(state_dir=str(folder / "state")))
    assert trouble is not None
    assert IN_ITS_PLACE in trouble.message
    assert trouble.hint.startswith(f"chmod go-w {folder}, or set state_dir")


def test_what_lies_below_a_directory_that_others_cannot_enter_is_used(reachable: Path) -> None:
    folder = reachable / "open"
    folder.mkdir()
    folder.chmod(0o777)
    reachable.chmod(0o700)
    assert try_state(Settings(state_dir=str(folder / "state"))) is None
    reachable.chmod(0o711)
    assert IN_ITS_PLACE in str(try_state(Settings(state_dir=str(folder / "state"))))


def test_parents_that_csub_makes_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        make_directory(tmp_path / "a" / "b" / "state")
    finally:
        os.umask(before)
    made = [tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "state"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in made] == [0o700] * 3
