"""docs/admin.md, followed word by word on a fresh private cluster: installed, used, undone."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.sandbox_spec import SandboxSpec

from ..wait_until import wait_until

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "admin.md"
BLOCK = re.compile(r"^(#+) ([^\n]*)$|^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
USER = "nobody"
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "tests")


def read_blocks() -> list[tuple[str, str]]:
    """Headings and the commands below them, in order."""
    found, heading = [], ""
    for match in BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        if match[3] is None:
            heading = match[2]
        else:
            found.append((heading, match[3]))
    return found


def is_undoing(heading: str) -> bool:
    return heading.endswith("to undo")


def test_there_are_at_most_twelve_commands_from_zero_to_verified() -> None:
    blocks = read_blocks()
    commands = [text.splitlines() for heading, text in blocks if not is_undoing(heading)]
    assert 0 < sum(map(len, commands)) <= 12
    assert any(is_undoing(heading) for heading, _ in blocks)


class Follower:
    """Somebody who types what the page says, each in the right place.

    Every place keeps its shell's variables from block to block.
    """

    def __init__(self, base: Path, sandbox: Sandbox) -> None:
        self.base = base
        self.checkout = base / "checkout"
        self.home = base / "home"
        shutil.copytree(ROOT, self.checkout, ignore=LEFT_OUT)
        self.home.mkdir()
        user = pwd.getpwnam(USER)
        os.chown(self.home, user.pw_uid, user.pw_gid)
        settings = base / "settings.toml"
        settings.write_text(f'node_python = "{base}/node/opt/slurm_colloc/bin/python"\n')
        programs = str(Path(sys.executable).parent)
        plain = {"PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
        (base / "node").mkdir()
        node = {"SLURM_COLLOC_BASE": str(base / "node"), "HOME": "/root"}
        told = {
            "HOME": str(self.home),
            "SLURM_COLLOC_SETTINGS": str(settings),
            "SLURM_COLLOC_RUN": str(base / "node" / "run" / "slurm_colloc"),
        }
        self.environments = {
            "checkout": {**plain, "HOME": "/root"},
            "node": {**plain, **sandbox.env(plain), **node},
            "controller": {**plain, **sandbox.env(plain), **node},
            "user": {**plain, **sandbox.env(plain), **told},
        }

    def choose_place(self, heading: str) -> str:
        words = {
            "checkout": "checkout",
            "node": "node",
            "controller": "controller",
            "log in": "user",
        }
        (place,) = {place for word, place in words.items() if word in heading}
        return place

    def type(self, heading: str, text: str) -> str:
        """Run a block; its output."""
        place = self.choose_place(heading)
        kept = self.base / f"{place}.variables"
        script = f"set -e\n{text}\nenv -0 >{kept}\n"
        if place == "user":
            script = f"set -e\n{text}\n"
        done = subprocess.run(
            ["bash", "-c", script],
            env=self.environments[place],
            cwd=self.home if place == "user" else self.checkout,
            user=USER if place == "user" else None,
            group="nogroup" if place == "user" else None,
            extra_groups=[] if place == "user" else None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{heading}:\n{text}\n{done.stdout}{done.stderr}"
        if place != "user":
            pairs = (item.partition("=") for item in kept.read_text().split("\0") if item)
            self.environments[place] = {name: value for name, _, value in pairs}
        return done.stdout


def list_tree(directory: Path) -> dict[str, int]:
    return {str(path): path.lstat().st_mode for path in directory.rglob("*")}


@pytest.mark.slurm
@pytest.mark.root
@pytest.mark.timeout(600)
def test_the_page_leads_to_a_pack_under_the_nodes_mps_and_back(
    base: Path, sandbox: Sandbox
) -> None:
    for program in ("patchelf", "make"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    sandbox.up(SandboxSpec(sandbox.directory, nodes=1, gpus_per_node=2, fake_gpus=True))
    if "SIMGPU_ROOT" not in sandbox.env():
        pytest.skip(sandbox.status().simulation_reason)
    follower = Follower(base, sandbox)
    conf = sandbox.layout.slurm_conf
    before = conf.read_text()
    machine = [list_tree(Path(path)) for path in ("/etc/slurm_colloc", "/opt/slurm_colloc")]
    outputs = {}
    for heading, text in read_blocks():
        if not is_undoing(heading):
            outputs[heading] = follower.type(heading, text)
    verified = outputs["On every GPU node, as root"]
    assert "FAILED" not in verified
    assert re.search(r"^ok +prepared +mode mps", verified, re.MULTILINE)
    assert re.search(r"^ok +GPU after", verified, re.MULTILINE)
    assert "slurm.conf.before-slurm_colloc." in outputs["On the controller, as root"]
    shown = outputs["Where users log in, as a user"]
    assert re.search(r"MPS: +the node's own daemon", shown), shown

    def log() -> list[dict[str, object]]:
        csub = base / "node/opt/slurm_colloc/bin/csub"
        text = subprocess.run(
            [csub, "admin", "log", "--json", "--last", "2"],
            env=follower.environments["node"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return [json.loads(line) for line in text.splitlines()]

    wait_until(lambda: [entry["hook"] for entry in log()] == ["prolog", "epilog"], "no epilog")
    assert [entry["action"] for entry in log()] == ["prepared", "undone"]
    assert {entry["outcome"] for entry in log()} == {""}

    for heading, text in read_blocks():
        if is_undoing(heading):
            follower.type(heading, text)
    assert conf.read_text() == before
    left = {str(path.relative_to(base / "node")) for path in (base / "node").rglob("*")}
    assert {path for path in left if path.endswith((".sh", ".service", "installed.json"))} == set()
    assert not (base / "node/opt/slurm_colloc").exists()
    assert machine == [list_tree(Path(path)) for path in ("/etc/slurm_colloc", "/opt/slurm_colloc")]
    # The cluster is as before: the next job runs, and leaves no line.
    follower.type("Where users log in, after undoing", "srun --gres=gpu:1 --time=1 true\n")
