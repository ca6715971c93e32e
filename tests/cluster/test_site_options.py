"""Options that a SPANK plug-in of the site brings: learned, passed on, compared."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, running_sandbox, user_of

pytestmark = pytest.mark.slurm

SOURCE = Path(__file__).with_name("site_plugin.c")


@pytest.fixture(scope="module")
def site() -> Iterator[Sandbox]:
    """A cluster whose plugstack.conf names the plug-in."""
    if shutil.which("cc") is None:
        pytest.skip("the plug-in needs a C compiler")
    with running_sandbox(nodes=1, gpus_per_node=1, cpus_per_node=16) as sandbox:
        environment = {**os.environ, **sandbox.env(dict(os.environ))}
        told = subprocess.run(
            ["sbatch", "--version"], env=environment, capture_output=True, text=True, check=True
        )
        numbers = re.findall(r"\d+", told.stdout)[:3]
        version = f"(({numbers[0]}<<16)|({int(numbers[1])}<<8)|{numbers[2]})"
        plugin = sandbox.layout.etc / "site_image.so"
        subprocess.run(
            ["cc", "-shared", "-fPIC", f"-DVERSION_NUMBER={version}", "-o", plugin, SOURCE],
            check=True,
        )
        (sandbox.layout.etc / "plugstack.conf").write_text(f"required {plugin}\n")
        yield sandbox


@pytest.fixture
def user(site: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    with user_of(site, accounts[0]) as somebody:
        yield somebody


SEE = 'env | grep -o "site_image_site_.*" | sort'


@pytest.mark.parametrize(
    ("options", "directives", "expected"),
    [
        (["--site-image=one"], "", ["site_image_site_image=one"]),
        (["--site-image", "two"], "", ["site_image_site_image=two"]),
        (["--site-im", "three"], "", ["site_image_site_image=three"]),
        (["--site-writable"], "", ["site_image_site_writable="]),
        (["--site-mounts"], "", ["site_image_site_mounts="]),
        ([], "#SBATCH --site-image four\n#SBATCH --site-mounts=/a",
         ["site_image_site_image=four", "site_image_site_mounts=/a"]),
        (["--site-image=five"], "#SBATCH --site-image=four", ["site_image_site_image=five"]),
    ],
)  # fmt: skip
def test_a_job_has_the_options_that_sbatch_would_give_it(
    user: CsubUser, options: list[str], directives: str, expected: list[str]
) -> None:
    user.script("see.sh", SEE, directives=directives)
    real = user.run([user.find("sbatch"), "--wait", "--parsable", *options, "see.sh"]).stdout
    job_id = user.submit(*options, "see.sh")
    user.finish(job_id)
    seen = user.output(f"slurm-{job_id}.out")
    assert seen == user.output(f"slurm-{real.strip()}.out")
    for text in expected:
        assert text in seen


def count_packs(user: CsubUser, *words: str) -> int:
    before = set(user.state.glob("packs/*"))
    user.csub("pack", "--gres=gpu:1", "--hold", *words)
    return len(set(user.state.glob("packs/*")) - before)


def test_only_jobs_with_equal_values_share_a_pack(user: CsubUser) -> None:
    for name, value in (("a", "one"), ("b", "one"), ("c", "two")):
        user.script(f"{name}.sh", "exit 0", directives=f"#SBATCH --site-image={value}")
    user.script("d.sh", "exit 0")
    assert count_packs(user, "a.sh", "b.sh") == 1
    assert count_packs(user, "a.sh", "c.sh") == 2
    assert count_packs(user, "a.sh", "d.sh") == 2


def test_an_option_that_no_one_knows_is_refused_in_one_sentence(user: CsubUser) -> None:
    user.script("a.sh", "exit 0")
    ended = user.csub("--site-imagine=one", "a.sh", check=False)
    assert ended.returncode == 2
    assert "--site-imagine is not an sbatch or csub option" in ended.stderr


def test_srun_in_a_member_hands_on_what_only_the_site_knows(user: CsubUser) -> None:
    user.script(
        "steps.sh",
        """srun --site-image=one echo attached
srun --site-image two echo apart
srun --site-writable -n1 echo flag
srun --site-mounts echo optional
srun --site-mounts=/a --label echo both
srun --no-such-option echo never
echo "ended with $?"
""",
    )
    user.script("other.sh", "exit 0")
    job_id = user.submit("pack", "--gres=gpu:1", "steps.sh", "other.sh")
    user.finish(job_id)
    told = user.output(f"slurm-{job_id}_1.out").splitlines()
    assert [line for line in told if "srun" not in line] == [
        "attached", "apart", "flag", "optional", "0: both", "ended with 255",
    ]  # fmt: skip
    assert "srun: unrecognized option '--no-such-option'" in told
