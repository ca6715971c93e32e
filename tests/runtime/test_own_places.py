"""Places of a member's own: what is bound where, what rules them out, and what refuses them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.setting_values import check_values
from slurm_colloc.runtime.member_places import (
    describe_places,
    find_added,
    find_commands,
    find_job_directories,
    find_obstacle,
    is_covered,
    list_covered,
    wants_tmp,
)
from slurm_colloc.runtime.programs import own_places
from slurm_colloc.runtime.programs.own_places import explain_refusal, plan_mounts

OWN = "/tmp/csub-7-1-ab"


def places(**changes: Any) -> dict[str, Any]:
    """What a wrapper is told, of a member with a /tmp of its own."""
    given = {
        "own": OWN, "tmp": True, "kept": [], "pinned": [], "directories": [], "commands": [],
        "real": "/s/packs/p/real",
    }  # fmt: skip
    return {**given, **changes}


def nothing(_: str) -> list[str]:
    return []


def test_the_own_tmp_covers_after_all_that_is_bound_into_it() -> None:
    told = places(kept=["/tmp/mps", "/tmp/u/work"], pinned=["/tmp/mps/p"])
    assert plan_mounts(told, {"/tmp/mps/p": ["control", "log"]}.__getitem__) == [
        ("/tmp/mps", f"{OWN}/tmp/mps"),
        ("/tmp/u/work", f"{OWN}/tmp/u/work"),
        ("/tmp/mps/p/control", f"{OWN}/tmp/mps/p/control"),
        ("/tmp/mps/p/log", f"{OWN}/tmp/mps/p/log"),
        (f"{OWN}/tmp", "/tmp"),
    ]


def test_real_commands_stay_within_reach_before_they_are_covered() -> None:
    told = places(tmp=False, commands=[("srun", ["/opt/bin/srun", "/usr/bin/srun"])])
    assert plan_mounts(told, nothing) == [
        ("/opt/bin/srun", "/s/packs/p/real/srun"),
        (f"{OWN}/command", "/opt/bin/srun"),
        (f"{OWN}/command", "/usr/bin/srun"),
    ]


def test_a_directory_of_the_job_has_both_names_and_its_neighbours() -> None:
    source = "/l/7/x.own"
    mounts = plan_mounts(
        places(tmp=False, directories=[("/l/7", "/l/900", source)]), {"/l": ["7", "8"]}.__getitem__
    )
    around = f"{OWN}/around.0"
    assert mounts == [
        (source, f"{around}/7"), ("/l/8", f"{around}/8"), (source, f"{around}/900"),
        (around, "/l"),
    ]  # fmt: skip
    # The pack's first member has the id of Slurm's job.
    assert plan_mounts(places(tmp=False, directories=[("/l/7", "", source)]), nothing) == [
        (source, "/l/7")
    ]
    # Where the user can make directories next to it, the other name is one.
    free = places(tmp=False, directories=[("/l/7", "/l/900", "/l/900")])
    assert plan_mounts(free, nothing) == [("/l/900", "/l/7")]
    assert list_covered(free) == ["/l/7", "/l/900"]


def test_directories_of_the_job_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "me-7").symlink_to("7")
    patterns = f"{tmp_path}/%j:{tmp_path}/%u-%j:{tmp_path}/no.%j"
    assert find_job_directories(patterns, "me", ("7", "900"), OWN) == [
        (f"{tmp_path}/7", f"{tmp_path}/900", f"{tmp_path}/900")
    ]
    assert find_job_directories(patterns, "me", ("7", "7"), OWN) == [
        (f"{tmp_path}/7", "", f"{tmp_path}/7/csub-7-1-ab.own")
    ]
    assert find_job_directories("", "me", ("7", "900"), OWN) == []


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("apptainer exec x.sif python t.py", "apptainer"),
        ("/usr/bin/singularity run x", "singularity"),
        ("module load singularity/3.8", "singularity"),
        ("x && sudo -n true", "sudo"),
        ('su - me -c "ls"', "su"),
        ("find . -exec chgrp lab {} +", "chgrp"),
        ("# docker run x", ""),
        ("python train.py --image=docker.io/x --su=1", ""),
        ("cat /data/docker/list; export sudo=1; echo result.su my-sudo", ""),
    ],
)
def test_words_that_rule_it_out(line: str, program: str) -> None:
    said = find_obstacle(f"#!/bin/bash\n{line}\n".encode(), [], "/home/me", has_tmp=True)
    assert (f"runs {program}," in said) if program else said == ""


def test_other_obstacles() -> None:
    assert "podman" in find_obstacle(b"", ["podman", "run"], "/home/me", has_tmp=True)
    assert "/tmp is its working directory" in find_obstacle(b"", [], "/tmp", has_tmp=True)
    assert find_obstacle(b"", [], "/tmp", has_tmp=False) == ""


def test_when_a_member_is_to_have_its_own() -> None:
    site = {"JobContainerType": "job_container/tmpfs"}
    assert wants_tmp("auto", site, is_lone=False)
    assert wants_tmp("auto", {"NamespaceType": "namespace/linux"}, is_lone=False)
    assert not wants_tmp("auto", site, is_lone=True)
    assert not wants_tmp("auto", {"JobContainerType": "(null)"}, is_lone=False)
    assert not wants_tmp("never", site, is_lone=False)
    assert wants_tmp("always", {}, is_lone=True)


def test_what_stays_within_reach() -> None:
    shared = Path("/tmp") / f"csub-test-{os.getpid()}"
    (shared / "p").mkdir(parents=True)
    try:
        added = {"CUDA_MPS_PIPE_DIRECTORY": f"{shared}/p", "TMPDIR": OWN, "X": "/home/x"}
        told = describe_places(
            OWN, [], has_tmp=True, refused="", kept=["/home/me", str(shared)], added=added
        )
        assert str(shared) in told["kept"]
        assert not any(path.startswith((OWN, "/home")) for path in told["kept"])
        assert told["pinned"] == [f"{shared}/p"]
        assert told["tmpdir"] == "/tmp"
    finally:
        shutil.rmtree(shared)
    # TMPDIR lies in a directory that becomes its own.
    told = describe_places(
        "/l/7/csub-x", [("/l/7", "", "/l/7/y")], has_tmp=False, refused="", kept=[], added={}
    )
    assert told["tmpdir"] == "/l/7"
    assert is_covered("/l/7/a", list_covered(told))
    assert not is_covered("/l/70", ["/l/7"])


def test_paths_that_csub_has_put_into_the_environment() -> None:
    environment = {"A": "/tmp/a", "B": "/tmp/b", "C": "/tmp/c", "D": "x"}
    assert find_added(environment, {"A": "/tmp/a"}, {"B": "/tmp/b"}) == {"C": "/tmp/c"}


def test_a_sites_script_is_not_covered(tmp_path: Path) -> None:
    script = tmp_path / "sbatch"
    script.write_text("#!/bin/sh\n")
    shutil.copy("/bin/true", tmp_path / "srun")
    paths = {"sbatch": [str(script)], "srun": [str(tmp_path / "srun")], "sacct": []}
    assert find_commands(paths, paths.__getitem__) == [("srun", [str(tmp_path / "srun")])]


@pytest.mark.parametrize("pattern", ["/%j", "relative/%j", "/lscratch/x", "/%j/x", "/l/%j/x"])
def test_patterns_that_are_refused(pattern: str) -> None:
    with pytest.raises(UsageProblem, match="own_directories"):
        check_values("f", {"own_directories": pattern})
    check_values("f", {"own_directories": "/lscratch/%j:/l/%u/job.%j"})


def test_why_a_node_refuses() -> None:
    apparmor = {"kernel.apparmor_restrict_unprivileged_userns": "1"}
    assert explain_refusal("x", lambda name: apparmor.get(name, "")).endswith(
        "(kernel.apparmor_restrict_unprivileged_userns = 1)"
    )
    assert explain_refusal("x: y", lambda _: "") == "no user namespace on this node: x: y"


REFUSING = """
import os, sys
sys.path.insert(0, {root!r})
from slurm_colloc.runtime.programs import own_places
own_places._separate()
open("/proc/sys/user/max_user_namespaces", "w").write("0")
before = os.readlink("/proc/self/ns/user"), os.readlink("/proc/self/ns/mnt")
print(own_places.try_places())
print(before == (os.readlink("/proc/self/ns/user"), os.readlink("/proc/self/ns/mnt")))
"""


def test_a_refusal_changes_nothing() -> None:
    """The switch counts for a namespace, so it can be turned off in one."""
    if own_places.try_places():
        pytest.skip("no user namespaces here")
    program = textwrap.dedent(REFUSING).format(root=str(Path(own_places.__file__).parents[3]))
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines() == [
        "user namespaces are not allowed on this node (user.max_user_namespaces = 0)", "True"
    ]  # fmt: skip


ENTER = """
import json, os, sys
sys.path.insert(0, {root!r})
from slurm_colloc.runtime.programs import own_places
told = json.loads(sys.argv[1])
own_places.enter_places(own_places.make_places(told), "/tmp")
open("/tmp/x", "w").close()
print(sorted(os.listdir("/tmp")))
"""


def run_inside(told: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    program = ENTER.format(root=str(Path(own_places.__file__).parents[3]))
    return subprocess.run(
        [sys.executable, "-c", program, json.dumps(told)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_tmp_of_its_own() -> None:
    if own_places.try_places():
        pytest.skip("no user namespaces here")
    own = Path("/var/tmp") / f"csub-test-{os.getpid()}"
    own.mkdir(mode=0o700)
    try:
        assert run_inside(places(own=str(own))).stdout == "['x']\n"
        assert (own / "tmp" / "x").exists()
        assert (own / "tmp").stat().st_mode & 0o777 == 0o700
        shutil.rmtree(own / "tmp")
        # Others could have put something there.
        own.chmod(0o770)
        assert "is not its own" in run_inside(places(own=str(own))).stderr
        missing = run_inside(places(own=str(own), kept=["/tmp/is/not/there"]))
        assert missing.returncode != 0
    finally:
        shutil.rmtree(own)
