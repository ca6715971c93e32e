"""Our hooks with a site's own, on a real Slurm: who runs first, and what is left at the end."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_colloc.administration.slurm_conf import Places
from slurm_colloc.host.hooks.node_policy import REMOVED_KEYS
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.sandbox_spec import SandboxSpec

from ..wait_until import wait_until

CSUB = Path(sys.executable).with_name("csub")
USER = "nobody"
JOB = (
    "--gres=gpu:1",
    "--time=1",
    "--output=/dev/null",
    "--comment=mine [csub/1 mps]",
    "--wrap=true",
)

# What the site's own script finds: whether something is prepared for the job at that moment.
SITE_SCRIPT = """\
#!/bin/sh
if [ -e {run}/jobs/$SLURM_JOB_ID.json ]; then found=prepared; else found=nothing; fi
echo "{kind} $SLURM_JOB_ID $found" >>{log}
"""


@dataclass(frozen=True)
class Node:
    """A cluster of one node, with scripts of the site's own."""

    base: Path
    sandbox: Sandbox
    places: Places

    @property
    def log(self) -> Path:
        return self.base / "site.log"

    def write_script(self, path: Path, kind: str) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(SITE_SCRIPT.format(run=self.places.run_path, kind=kind, log=self.log))
        path.chmod(0o755)

    def up(self, prolog: str, epilog: str) -> None:
        lines = (f"Prolog={prolog}", f"Epilog={epilog}")
        self.sandbox.up(
            SandboxSpec(
                self.sandbox.directory,
                nodes=1,
                gpus_per_node=1,
                fake_gpus=True,
                simgpu=False,
                extra_conf=lines,
            )
        )

    def csub(self, *words: str, status: int = 0) -> str:
        environ = {**os.environ, **self.sandbox.env(), "SLURM_COLLOC_BASE": self.places.base}
        done = subprocess.run(
            [CSUB, "admin", *words], env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def reconfigure(self) -> None:
        environ = {**os.environ, **self.sandbox.env()}
        subprocess.run(["scontrol", "reconfigure"], env=environ, check=True)

    def run_job(self) -> str:
        """Run a job that asks for MPS; its id, after its epilog."""
        plain = {"PATH": os.environ["PATH"], "HOME": "/"}
        done = subprocess.run(
            ["sbatch", "--parsable", "--wait", *JOB],
            env={**plain, **self.sandbox.env(plain)},
            cwd="/",
            user=USER,
            group="nogroup",
            extra_groups=[],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        job = done.stdout.strip()
        wait_until(lambda: f"epilog {job} " in self.log.read_text(), "its epilog ran")
        return job


def read_hooks(lines: str) -> list[str]:
    """Which hooks have left a line."""
    return [json.loads(line)["hook"] for line in lines.splitlines()]


@pytest.fixture
def node(base: Path, sandbox: Sandbox, node_tree: Path) -> Node:
    places = Places(base=str(base))
    Path(places.prefix_path).parent.mkdir()
    shutil.copytree(node_tree, places.prefix_path, symlinks=True)
    return Node(base, sandbox, places)


@pytest.mark.smoke
@pytest.mark.slurm
@pytest.mark.root
def test_in_a_directory_our_prolog_is_last_and_our_epilog_first(node: Node) -> None:
    for kind in ("prolog", "epilog"):
        node.write_script(node.base / f"{kind}.d" / "50-own.sh", kind)
    node.up(f"{node.base}/prolog.d/*", f"{node.base}/epilog.d/*")
    conf = node.sandbox.layout.slurm_conf.read_text()
    node.csub("install-hooks", "--node")
    assert "has all that is needed" in node.csub("install-hooks", "--controller")
    job = node.run_job()
    assert node.log.read_text().splitlines() == [f"prolog {job} nothing", f"epilog {job} nothing"]
    assert read_hooks(node.csub("log", "--job", job, "--json")) == ["prolog", "epilog"]
    assert "nothing to take back" in node.csub("uninstall", "--controller")
    node.csub("uninstall", "--node")
    assert node.sandbox.layout.slurm_conf.read_text() == conf
    later = node.run_job()
    assert f"prolog {later} nothing" in node.log.read_text()
    assert f" {later} " not in node.csub("log")


@pytest.mark.slurm
@pytest.mark.root
def test_one_script_of_the_site_runs_beside_ours_and_alone_again(node: Node) -> None:
    scripts = {kind: node.base / f"site-{kind}.sh" for kind in ("prolog", "epilog")}
    for kind, script in scripts.items():
        node.write_script(script, kind)
    node.up(str(scripts["prolog"]), str(scripts["epilog"]))
    conf = node.sandbox.layout.slurm_conf
    before = conf.read_text()
    node.csub("install-hooks", "--node")
    node.csub("install-hooks", "--controller", "--slurm-conf", str(conf))
    node.reconfigure()
    job = node.run_job()
    assert node.log.read_text().splitlines() == [f"prolog {job} nothing", f"epilog {job} nothing"]
    assert read_hooks(node.csub("log", "--job", job, "--json")) == ["prolog", "epilog"]
    assert "still needed" in node.csub("uninstall", "--node", status=5)
    node.csub("uninstall", "--controller", "--slurm-conf", str(conf))
    assert conf.read_text() == before
    # Slurm itself has not heard of it yet.
    assert "still needed" in node.csub("uninstall", "--node", status=5)
    node.reconfigure()
    node.csub("uninstall", "--node")
    later = node.run_job()
    assert f"epilog {later} nothing" in node.log.read_text()


@pytest.mark.slurm
@pytest.mark.root
def test_verifying_says_what_is_wrong_with_a_node(node: Node) -> None:
    node.sandbox.up(SandboxSpec(node.sandbox.directory, nodes=1, gpus_per_node=1, fake_gpus=True))
    if "SIMGPU_ROOT" not in node.sandbox.env():
        pytest.skip(node.sandbox.status().simulation_reason)
    assert "no hooks are installed on this machine" in node.csub("verify", status=7)
    node.csub("install-hooks", "--node")
    assert "FAILED" not in node.csub("verify")
    policy = Path(node.places.policy_path)
    original = policy.read_text()
    policy.write_text(original.replace("enabled = true", "enabled = false"))
    assert "enabled = false: prologs do nothing" in node.csub("verify", status=5)
    policy.write_text(original + "surprise = 1\n")
    assert "unknown key 'surprise'" in node.csub("verify", status=5)
    assert "unknown key 'surprise'" in node.csub("show-config", status=6)
    policy.write_text(original + "mig_change = true\n")
    told = " ".join(node.csub("verify").split())
    assert f"policy {policy}: {REMOVED_KEYS['mig_change']}" in told
    policy.write_text(original)
    hook = Path(node.places.hooks_path, "prolog.sh")
    good = hook.read_text()
    hook.write_text(good + "# more\n")
    assert "is not what this version installs" in node.csub("verify", status=5)
    hook.write_text(good)
    hook.chmod(0o775)
    assert "only root can write" in node.csub("verify", status=5)
    hook.chmod(0o755)
    library = next(Path(node.places.prefix_path).glob("lib*/python*/os.py"))
    library.chmod(0o666)
    assert f"{library} can be changed by others" in node.csub("verify", status=5)
    library.chmod(0o644)
    os.chown(library, 65534, 65534)
    assert f"{library} can be changed by others" in node.csub("verify", status=5)
    os.chown(library, 0, 0)
    stopped = "#!/bin/sh\nexit 1\n"
    epilog = Path(node.places.prefix_path, "bin", "python")
    kept = epilog.with_name("python.kept")
    epilog.rename(kept)
    epilog.write_text(stopped)
    epilog.chmod(0o755)
    assert "FAILED  python" in node.csub("verify", status=5)
    kept.rename(epilog)
    assert "FAILED" not in node.csub("verify")
    assert "there is no GPU 77 here" in node.csub("verify", "--gpu", "77", status=2)
    assert "never start a daemon for root" in node.csub("verify", "--user", "root", status=2)
    assert not list(Path(node.places.run_path, "jobs").iterdir())
