"""The token on its way through a real Slurm: from csub's comment to the program of the prolog."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, running_sandbox, user_of
from ..cluster.conftest import accounts
from ..cluster.joins import list_packs
from ..wait_until import wait_until
from .conftest import install

__all__ = ["accounts"]  # a fixture

pytestmark = pytest.mark.slurm

OPTIONS = "#SBATCH --gres=gpu:1 --cpus-per-task=2 --mem=200M --time=10"
TOKEN = "[csub/1 mps]"
# Ends well, and keeps what each hook of each job was told.
_RECORDER = """\
#!/bin/sh
for word; do case $word in prolog | epilog) hook=$word ;; esac; done
/usr/bin/env -0 >'{folder}'/$SLURM_JOB_ID.$hook.new
mv '{folder}'/$SLURM_JOB_ID.$hook.new '{folder}'/$SLURM_JOB_ID.$hook
[ $hook = epilog ] || : >'{jobs}'/$SLURM_JOB_ID.json
"""


@dataclass(frozen=True)
class Site:
    """A cluster of one GPU whose hooks tell what they were given."""

    sandbox: Sandbox
    told: Path

    def read(self, job_id: str, hook: str) -> dict[str, str]:
        """What a hook's program was given; waits for it."""
        path = self.told / f"{job_id}.{hook}"
        wait_until(path.exists, f"the {hook} of job {job_id}")
        pairs = path.read_bytes().decode("utf-8", "surrogateescape").split("\0")
        return dict(pair.split("=", 1) for pair in pairs if pair)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One node, one GPU, and our two hooks."""
    installed = install(tmp_path_factory.mktemp("site"))
    told = installed.root / "told"
    told.mkdir()
    program = installed.root / "opt/bin/python"
    program.write_text(_RECORDER.format(folder=told, jobs=installed.jobs))
    hooks = [f"{name.title()}={installed.hook(name)}" for name in ("prolog", "epilog")]
    with running_sandbox(
        nodes=1, gpus_per_node=1, cpus_per_node=16, extra_conf=tuple(hooks)
    ) as sandbox:
        yield Site(sandbox, told)


@pytest.fixture
def user(site: Site, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    """Somebody who submits there."""
    with user_of(site.sandbox, accounts[0]) as somebody:
        somebody.script("a.sh", "true", directives=OPTIONS)
        yield somebody


def read_comment(user: CsubUser, job_id: str) -> str:
    return user.run(["squeue", "-h", f"--jobs={job_id}", "--format=%k"]).stdout.rstrip("\n")


def mark_of(user: CsubUser, job_id: str) -> str:
    return f"[csub-pack={list_packs(user)[job_id].name.rpartition('.')[0]}]"


def configure(user: CsubUser, **values: str) -> None:
    for name, value in values.items():
        user.csub("config", name, value)


def block(user: CsubUser) -> str:
    """Take the GPU, so that what comes next waits."""
    job_id = user.run(
        ["sbatch", "--parsable", "--gres=gpu:1", "--mem=50M", "--output=/dev/null",
         "--wrap=sleep 600"]
    ).stdout.strip()  # fmt: skip
    state = ["squeue", "-h", f"--jobs={job_id}", "--format=%T"]
    wait_until(lambda: user.run(state).stdout.strip() == "RUNNING", "the GPU is taken")
    return job_id


@pytest.mark.smoke
def test_the_prolog_is_told_of_a_pack_and_the_epilog_of_what_is_there(
    site: Site, user: CsubUser
) -> None:
    words = "it's $(mine) [me] ü | x"
    job_id = user.submit("--array=1-2", f"--comment={words}", "a.sh")
    user.finish(job_id)
    prolog, epilog = site.read(job_id, "prolog"), site.read(job_id, "epilog")
    assert prolog["SLURM_JOB_COMMENT"].startswith(f"{words} [csub-pack=")
    assert prolog["SLURM_JOB_COMMENT"].endswith(f"] {TOKEN}")
    for seen in (prolog, epilog):
        assert seen["SLURM_JOB_ID"] == job_id
        assert seen["SLURM_JOB_UID"] == str(user.uid)
        assert seen["SLURM_JOB_GID"] == str(user.gid)
        assert seen["SLURM_JOB_GPUS"] == "0"
        assert seen["SLURM_JOB_PARTITION"] == "gpu"
        assert int(seen["SLURM_JOB_CPUS_PER_NODE"]) >= 1
        assert set(seen) <= {
            "PATH", "LC_ALL", "PWD", "SLURM_JOB_ID", "SLURM_JOB_UID", "SLURM_JOB_GID",
            "SLURM_CONF", "SLURM_JOB_USER", "SLURM_JOB_COMMENT", "SLURM_JOB_PARTITION",
            "SLURM_JOB_ACCOUNT",
            "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES", "SLURMD_NODENAME", "SLURM_CLUSTER_NAME",
            "SLURM_JOB_RESTART_COUNT", "SLURM_JOB_CPUS_PER_NODE", "SLURM_JOB_SLUID",
            "SHLVL", "_", "OLDPWD",
        }  # fmt: skip


@pytest.mark.smoke
def test_jobs_that_are_no_packs_are_nothing_to_the_hooks(site: Site, user: CsubUser) -> None:
    alone = user.submit("a.sh")
    user.finish(alone)
    slices = user.submit("--share=timeslice", "--array=1-2", "a.sh")
    user.finish(slices)
    configure(user, hooks="never")
    never = user.submit("--array=1-2", "a.sh")
    user.finish(never)
    foreign = user.run(
        ["sbatch", "--wait", "--parsable", "--output=/dev/null", "--comment=[csub/1 mps]x",
         "--wrap=true"]
    ).stdout.strip()  # fmt: skip
    # A job that has the token is what their absence is held against.
    configure(user, hooks="auto")
    last = user.submit("--array=1-2", "a.sh")
    user.finish(last)
    site.read(last, "epilog")
    for job_id in (alone, slices, never, foreign):
        assert not list(site.told.glob(f"{job_id}.*"))


def test_a_user_who_changes_the_comment_does_not_reach_the_epilog(
    site: Site, user: CsubUser
) -> None:
    user.script("b.sh", "while ! [ -e go ]; do sleep 0.1; done", directives=OPTIONS)
    job_id = user.submit("--array=1-2", "b.sh")
    assert site.read(job_id, "prolog")["SLURM_JOB_COMMENT"].endswith(TOKEN)
    user.run(["scontrol", "update", f"JobId={job_id}", "Comment=[csub/1 off] $(reboot)"])
    (user.home / "go").touch()
    user.finish(job_id)
    assert site.read(job_id, "epilog")["SLURM_JOB_COMMENT"] == "[csub/1 off] $(reboot)"


def test_a_job_that_is_joined_while_it_waits_gets_the_token(user: CsubUser) -> None:
    blocker = block(user)
    words = ["--comment=mine=1, [x]", "--join=auto", "--open=never", "--parsable", "a.sh"]
    job_id = user.csub(*words).stdout.strip()
    assert read_comment(user, job_id) == f"mine=1, [x] {mark_of(user, job_id)}"
    assert user.csub(*words).stdout.strip() == f"{job_id}/2"
    assert read_comment(user, job_id) == f"mine=1, [x] {mark_of(user, job_id)} {TOKEN}"
    # The next one finds it there; the user's own changes stay as they are.
    assert user.csub(*words).stdout.strip() == f"{job_id}/3"
    assert read_comment(user, job_id) == f"mine=1, [x] {mark_of(user, job_id)} {TOKEN}"
    changed = f"other words {mark_of(user, job_id)} and behind"
    user.run(["scontrol", "update", f"JobId={job_id}", f"Comment={changed}"])
    assert user.csub(*words).stdout.strip() == f"{job_id}/4"
    assert read_comment(user, job_id) == changed
    # Without room for it nothing of the user's is cut off.
    long = ["--join=auto", "--open=never", "--parsable", f"--comment={'x' * 980}", "a.sh"]
    alone = user.csub(*long).stdout.strip()
    joined = user.csub("--explain", *long)
    assert joined.stdout.strip() == f"{alone}/2"
    assert read_comment(user, alone) == "x" * 980 + f" {mark_of(user, alone)}"
    for text in (joined.stderr, user.csub("show", alone).stdout):
        assert "--comment leaves no room for it" in text
    user.run(["scancel", blocker])
    assert {row["state"] for row in user.finish(job_id).values()} == {"COMPLETED"}


@pytest.mark.smoke
def test_slurm_takes_the_longest_comment_that_csub_writes(user: CsubUser) -> None:
    room = 1024 - len(" [csub-pack=20260101-000000-0a0b0c0d]")
    blocker = block(user)
    for length, has_token in ((room - len(TOKEN) - 1, True), (room - len(TOKEN), False),
                              (room, False)):  # fmt: skip
        answer = user.csub(
            "--explain", "--parsable", "--array=1-2", f"--comment={'x' * length}", "a.sh"
        )
        job_id = answer.stdout.strip()
        comment = read_comment(user, job_id)
        assert comment.startswith("x" * length + f" {mark_of(user, job_id)}")
        assert comment.endswith(TOKEN) is has_token
        shown = user.csub("show", job_id).stdout
        for text in (answer.stderr, shown):
            assert ("--comment leaves no room for it" in text) is not has_token
    refused = user.csub("--array=1-2", f"--comment={'x' * (room + 1)}", "a.sh", check=False)
    assert refused.returncode == 2
    assert "--comment is too long" in refused.stderr
    # A byte more than csub ever writes is what Slurm itself refuses.
    raw = user.run(["sbatch", f"--comment={'x' * 1025}", "--wrap=true"], check=False)
    assert raw.returncode != 0
    user.run(["scancel", blocker])


def test_packs_that_need_hooks_go_to_nodes_that_have_them(site: Site, user: CsubUser) -> None:
    configure(user, hooks="always", hook_feature="csub-hooks")
    refused = user.csub("--array=1-2", "a.sh", check=False)
    assert refused.returncode == 4
    node = user.run(["sinfo", "-h", "-o", "%N"]).stdout.split()[0]
    subprocess.run(
        ["scontrol", "update", f"NodeName={node}", "AvailableFeatures=csub-hooks,a100,h100",
         "ActiveFeatures=csub-hooks,a100,h100"],
        env={**os.environ, **site.sandbox.env()}, check=True,
    )  # fmt: skip
    for own in ((), ("-C", "a100"), ("-C", "a100|h100"), ("-C", "a100&h100")):
        job_id = user.submit(*own, "--array=1-2", "a.sh")
        asked = user.run(["squeue", "-h", f"--jobs={job_id}", "--format=%f"]).stdout
        assert "csub-hooks" in asked
        rows: dict[int, dict[str, Any]] = user.finish(job_id)
        assert {row["state"] for row in rows.values()} == {"COMPLETED"}
    told = user.csub("--dry-run", "-C", "[a100|h100]", "--array=1-2", "a.sh").stdout
    assert "nodes with csub-hooks are not asked for" in told
