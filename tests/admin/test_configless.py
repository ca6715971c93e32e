"""Hooks on a node that has no slurm.conf of its own: its slurmd gets it from the controller."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_colloc.administration.slurm_conf import Places
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.installation import find_installation
from slurm_colloc_lab.sandbox.sandbox_record import read_record
from slurm_colloc_lab.sandbox.sandbox_spec import SandboxSpec

from ..wait_until import wait_until
from .conftest import PATIENCE_S

pytestmark = [pytest.mark.slurm, pytest.mark.root]

CSUB = Path(sys.executable).with_name("csub")
# A /run of its own, for slurmd leads everybody there to what it was sent. Before it has that, it
# knows munge by its usual place only.
START = """\
mount --make-rprivate / && mount -t tmpfs none /run && mkdir /run/munge || exit 99
ln -s "$MUNGE" /run/munge/munge.socket.2
exec "$@"
"""


@dataclass(frozen=True)
class Node:
    """A node whose slurmd was started with --conf-server.

    Attributes:
        slurmd: It, in a mount namespace with a /run of its own.
    """

    sandbox: Sandbox
    places: Places
    slurmd: subprocess.Popen[bytes]

    def run(self, *argv: str | Path, status: int = 0) -> str:
        """Run a program there, which finds Slurm as any program of the node does."""
        environ = {name: text for name, text in os.environ.items() if name != "SLURM_CONF"}
        done = subprocess.run(
            ["nsenter", "--mount", "--root", f"--target={self.slurmd.pid}", "--wd", *argv],
            env={**environ, "SLURM_COLLOC_BASE": self.places.base},
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def csub(self, *words: str, status: int = 0) -> str:
        return self.run(CSUB, "admin", *words, status=status)


def read_node_state(sandbox: Sandbox) -> str:
    return sandbox.status().nodes[0].state


@pytest.fixture
def node(base: Path, sandbox: Sandbox, node_tree: Path) -> Iterator[Node]:
    places = Places(base=str(base))
    Path(places.prefix_path).parent.mkdir()
    shutil.copytree(node_tree, places.prefix_path, symlinks=True)
    sandbox.up(
        SandboxSpec(
            sandbox.directory,
            nodes=1,
            gpus_per_node=1,
            fake_gpus=True,
            simgpu=False,
            extra_conf=("SlurmctldParameters=enable_configless",),
        )
    )
    [name] = sandbox.node_names
    sandbox.kill_node(name)
    slurmd = start_slurmd(sandbox, name)
    sent = f"/proc/{slurmd.pid}/root/run/slurm/conf/slurm.conf"
    try:
        # The controller calls it idle for a while whether it runs or not.
        wait_until(lambda: slurmd.poll() is not None or os.path.lexists(sent), "slurmd is up")
        wait_until(
            lambda: slurmd.poll() is not None or read_node_state(sandbox) == "idle", "it is idle"
        )
        if slurmd.poll() == 99:
            pytest.skip("no mount namespaces here")
        assert slurmd.poll() is None, (sandbox.layout.log / "configless.out").read_text()
        yield Node(sandbox, places, slurmd)
    finally:
        slurmd.terminate()
        slurmd.wait()


def start_slurmd(sandbox: Sandbox, name: str) -> subprocess.Popen[bytes]:
    """Start a node that is told nothing but where the controller is."""
    installation = find_installation(os.environ)
    record = read_record(sandbox.layout.record)
    assert record is not None
    stepd: Sequence[str] = ("-d", installation.slurmstepd) if installation.slurmstepd else ()
    with (sandbox.layout.log / "configless.out").open("wb") as file:
        return subprocess.Popen(
            [
                *("unshare", "--mount", "sh", "-c", START, "sh", installation.slurmd, *stepd),
                *("-D", "-N", name, "--conf-server", f"127.0.0.1:{record.controller_port}"),
            ],
            env={"PATH": os.environ["PATH"], "MUNGE": str(sandbox.layout.munge_socket)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )


def test_hooks_of_a_node_that_has_its_slurm_conf_from_the_controller(node: Node) -> None:
    sandbox, places = node.sandbox, node.places
    assert node.run("readlink", "-f", "/run/slurm/conf/slurm.conf").startswith(
        f"{sandbox.layout.spool}/"
    )
    # What is to be done, said on the node itself.
    told = node.csub("install-hooks", "--dry-run")
    for kind in ("prolog", "epilog"):
        assert f"would write    {places.hooks_path}/{kind}.sh" in told
        assert f"{kind.capitalize()}={places.hooks_path}/{kind}.sh" in told
    assert f"# {sandbox.layout.slurm_conf} needs" in told
    assert "# on the controller alone: nodes get it" in told
    assert "each node needs them in its own file system" in told
    refused = node.csub(
        *("install-hooks", "--controller", "--slurm-conf", "/run/slurm/conf/slurm.conf"), status=2
    )
    assert "is a copy that slurmd got from the controller" in refused

    # Done: the files on the node, the lines on the controller, and a job.
    node.csub("install-hooks", "--node")
    environ = {**os.environ, **sandbox.env(), "SLURM_COLLOC_BASE": places.base}
    conf = str(sandbox.layout.slurm_conf)
    for argv in (
        [str(CSUB), "admin", "install-hooks", "--controller", "--slurm-conf", conf],
        ["scontrol", "reconfigure"],
    ):
        subprocess.run(argv, env=environ, check=True, stdout=subprocess.DEVNULL)
    cached = Path(node.run("readlink", "-f", "/run/slurm/conf/slurm.conf").strip())
    wait_until(lambda: f"Prolog={places.hooks_path}/prolog.sh" in cached.read_text(), "it was sent")
    done = subprocess.run(
        [
            *("sbatch", "--parsable", "--wait", "--gres=gpu:1", "--time=1", "--output=/dev/null"),
            *("--comment=mine [csub/1 mps]", "--wrap=true"),
        ],
        env={"PATH": os.environ["PATH"], "HOME": "/", **sandbox.env({"PATH": os.environ["PATH"]})},
        cwd="/",
        user="nobody",
        group="nogroup",
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()

    def read_hooks() -> list[str]:
        lines = node.csub("log", "--job", job, "--json").splitlines()
        return [json.loads(line)["hook"] for line in lines]

    wait_until(lambda: read_hooks() == ["prolog", "epilog"], "both ran")
    assert read_node_state(sandbox) == "idle"
