"""A member's environment is the one that sbatch would have given it alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, user_of, wait_until_quiet
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

CASES = {
    "plain": (),
    "cpus": ("-c2",),
    "mem": ("--mem=200M",),
    "mem-per-cpu": ("-c2", "--mem-per-cpu=100M"),
    "array": ("--array=3,5",),
    "gpus": ("--gpus=1",),
    "gpus-per-node": ("--gpus-per-node=1",),
    "ntasks": ("--ntasks=1",),
    "ntasks-per-node": ("--ntasks-per-node=1",),
    "name": ("-J", "a name; $(of) words"),
    "chdir": ("--chdir=below",),
    "export-all-and": ("--export=ALL,FOO=bar",),
    "export-one": ("--export=FOO",),
    "export-value": ("--export=FOO=bar,NEW=new",),
    "export-none": ("--export=NONE",),
    "export-nil": ("--export=NIL",),
    "login": ("--get-user-env",),
    "login-and-one": ("--get-user-env=9", "--export=FOO"),
}

SMOKE = ("plain", "cpus", "mem", "array", "gpus", "name", "export-one", "export-none")
"""One of each kind."""
MARKED = {case: [pytest.mark.smoke] if case in SMOKE else [] for case in CASES}
IN_PACKS = [pytest.param(case, marks=marks) for case, marks in MARKED.items()]
ALONE = [pytest.param(case, marks=marks) for case, marks in MARKED.items() if case != "array"]

OF_EVERY_JOB = {
    "SLURM_JOB_ID": "another job",
    "SLURM_JOBID": "another job",
    "SLURM_ARRAY_JOB_ID": "another job",
    "SLURM_TASK_PID": "another process",
    "SLURM_JOB_GPUS": "whichever GPU of the node was free",
    "SLURM_JOB_SLUID": "another job (Slurm 26.05)",
    "SLURM_JOB_START_TIME": "another moment (Slurm 24.11 and 26.05)",
    "SLURM_JOB_END_TIME": "another moment; the time between the two is compared below",
}
OF_A_LONE_CSUB_JOB = OF_EVERY_JOB | {
    "SLURM_COLLOC_MEMBER": "the member's own name",
    "SLURM_COLLOC_NAME": "the same, for names of files",
    "SLURM_COLLOC_CHECKPOINT": "the first try's name, the same in all tries",
    "SLURM_COLLOC_PROGRESS": "where its steps are counted, in packs that are watched",
    "PYTHONPATH": "what counts them; that the user's own comes behind it: test_watching.py",
}
OF_A_PACK_MEMBER = OF_A_LONE_CSUB_JOB | {
    "PATH": "the member's srun, scontrol and others come first (the rest is compared)",
    "SLURM_COLLOC_PACK": "for these commands",
    "SLURM_COLLOC_START": "for these commands",
    "SLURM_COLLOC_SET": "what jobs that it submits are not to see",
    "BASH_ENV": "keeps these commands in reach of bash",
    "BASH_FUNC_scancel%%": "the same, where a site's profile sets BASH_ENV",
    "BASH_FUNC_scontrol%%": "the same",
    "BASH_FUNC_squeue%%": "the same",
    "BASH_FUNC_sbatch%%": "the same",
    "BASH_FUNC_sacct%%": "the same",
    "BASH_FUNC_sattach%%": "the same",
    "BASH_FUNC_sbcast%%": "the same",
    "BASH_FUNC_sstat%%": "the same",
    "SLURM_OVERLAP": "an srun called by its path runs next to the neighbours",
    "SLURM_CPU_BIND": "an srun called by its path runs on the member's CPUs",
    "TMPDIR": "a directory of its own, where nobody set it",
    "CUDA_MPS_PIPE_DIRECTORY": "where no MPS daemon listens: in TMPDIR, which is compared below",
    "MASTER_PORT": "a port of its own, where nobody set it",
    "PET_MASTER_PORT": "a port of its own, where nobody set it",
    "OMP_NUM_THREADS": "as many threads as CPUs, where nobody set it",
}
WITHOUT_MEM = {
    "SLURM_MEM_PER_CPU": "DefMemPerCPU; a member without --mem gets its share of the GPU's node",
    "SLURM_MEM_PER_NODE": "that share",
}

SCRIPT = """\
name="$3/env.$1.$2.${SLURM_ARRAY_TASK_ID:-x}"
/usr/bin/env -0 > "$name"
case " $4 " in *" $1 "*) srun /usr/bin/env -0 > "$3/step.${name##*/env.}" ;; esac
"""
WITH_STEPS = ("cpus", "mem", "gpus", "name", "array", "export-all-and", "export-one", "export-none")

OF_EVERY_STEP = {
    "SLURM_STEPID": "another step",
    "SLURM_STEP_GPUS": "whichever GPU of the node was free",
    "SLURM_STEP_ID": "another step",
    "SLURM_STEP_LAUNCHER_PORT": "another step",
    "SLURM_SRUN_COMM_PORT": "another step",
    "SLURM_CPU_BIND": "the member's CPUs; none where the node claims more than the machine has",
    "SLURM_CPU_BIND_LIST": "the member's CPUs",
    "SLURM_CPU_BIND_TYPE": "the member's CPUs",
    "SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0": "a leftover of old releases, of the pack",
    "SLURM_DISTRIBUTION": "of CPUs that srun chooses; here the member's are given",
    "_": "the shell's: the srun that comes first on PATH",
}


def read_inside(member: dict[str, str]) -> dict[str, str]:
    """What a member's shims know of it."""
    text = (Path(member["SLURM_COLLOC_START"]).parent / "inside").read_text()
    return dict(pair.partition("=")[::2] for pair in text.split("\0"))


@dataclass
class Environments:
    """What the same script saw under sbatch, alone under csub, and in a pack."""

    user: CsubUser

    def read(self, case: str, how: str, *, what: str = "env") -> list[dict[str, str]]:
        found = []
        for path in sorted(self.user.home.glob(f"{what}.{case}.{how}.*")):
            words = path.read_bytes().decode("utf-8", "surrogateescape").split("\0")
            found.append(dict(word.partition("=")[::2] for word in words if word))
        return found


def takes(user: CsubUser, options: Sequence[str]) -> bool:
    """Whether this release's sbatch takes these options."""
    return not user.run(["sbatch", "--test-only", *options, "--wrap=true"], check=False).returncode


def find_cases(request: pytest.FixtureRequest) -> set[str]:
    """The cases that the chosen tests of this file look at: all, or those of `make test`."""
    own = [item for item in request.session.items if item.path == request.path]
    return set(SMOKE if all(item.get_closest_marker("smoke") for item in own) else CASES)


@pytest.fixture(scope="module")
def environments(
    request: pytest.FixtureRequest, cluster: Sandbox, accounts: tuple[str, ...]
) -> Iterator[Environments]:
    """Every case, run by sbatch, by csub alone, and by csub in a pack."""
    cases = find_cases(request)
    with user_of(cluster, accounts[0]) as user:
        user.extra |= {"FOO": "foo", "NOTHING": "", "LINES_AND": 'a\nb "c" $(d) ü', "SLURM_X": "x"}
        user.run(["mkdir", "below"])
        user.script("look.sh", SCRIPT)
        node = user.run(["sinfo", "-h", "-N", "-o", "%N"]).stdout.split()[0]
        home, steps = str(user.home), " ".join(WITH_STEPS)
        rest = (home, steps)
        for case, options in CASES.items():
            if case not in cases:
                continue
            given = options
            if any("=9" in word for word in options) and not takes(user, options):
                # Slurm 26.05 gives this option no argument any more.
                given = tuple(word.removesuffix("=9") for word in options)
            gpu = () if case.startswith("gpus") else ("--gres=gpu:1",)
            common = (f"--nodelist={node}", *gpu, *given)
            user.run(["sbatch", "-o", "/dev/null", *common, "look.sh", case, "sbatch", *rest])
            user.csub("-o", "/dev/null", *common, "look.sh", case, "alone", *rest)
            if case == "array":
                user.csub("-o", "/dev/null", *common, "look.sh", case, "pack", *rest)
            else:
                words = [
                    f"look.sh {case} {name} {home} '{steps}'" for name in ("pack", "neighbour")
                ]
                user.csub("pack", "-o", "/dev/null", *common, *words)
        wait_until_quiet(user)
        yield Environments(user)


def time_s(environment: dict[str, str]) -> int:
    """How long the job may run, 0 where this release does not tell it (Slurm 22.05)."""
    if "SLURM_JOB_END_TIME" not in environment:
        return 0
    return int(environment["SLURM_JOB_END_TIME"]) - int(environment["SLURM_JOB_START_TIME"])


def compare(expected: dict[str, str], actual: dict[str, str], allowed: dict[str, str]) -> list[str]:
    """The variables that differ and may not."""
    return [
        f"{name}: sbatch {expected.get(name)!r}, csub {actual.get(name)!r}"
        for name in sorted(expected.keys() | actual.keys())
        if name not in allowed and expected.get(name) != actual.get(name)
    ]


@pytest.mark.parametrize("case", ALONE)
def test_a_script_alone_sees_what_sbatch_gives_it(environments: Environments, case: str) -> None:
    [expected] = environments.read(case, "sbatch")
    [actual] = environments.read(case, "alone")
    assert compare(expected, actual, OF_A_LONE_CSUB_JOB) == []
    assert time_s(actual) == time_s(expected)


@pytest.mark.parametrize("case", IN_PACKS)
def test_a_member_of_a_pack_sees_what_sbatch_gives_it(
    environments: Environments, case: str
) -> None:
    expected = environments.read(case, "sbatch")
    actual = environments.read(case, "pack")
    assert len(expected) == len(actual) == (2 if case == "array" else 1)
    allowed = OF_A_PACK_MEMBER | ({} if "mem" in case else WITHOUT_MEM)
    for sbatch, member in zip(expected, actual, strict=True):
        assert compare(sbatch, member, allowed) == []
        shims, _, rest = member["PATH"].partition(":")
        assert shims == str(Path(member["SLURM_COLLOC_START"]).parent / "bin")
        assert member["CUDA_MPS_PIPE_DIRECTORY"] == f"{member['TMPDIR']}/mps"
        # With --export=NIL, Slurm 24.11 and 26.05 give none; the shell then has its own.
        assert rest == sbatch.get("PATH", "/usr/local/bin:/usr/bin:/bin")
        # A member's limit is stretched, because it shares the GPU.
        assert time_s(member) >= time_s(sbatch)


@pytest.mark.parametrize("case", WITH_STEPS)
def test_a_step_of_a_member_sees_what_it_would_see_under_sbatch(
    environments: Environments, case: str
) -> None:
    expected = environments.read(case, "sbatch", what="step")
    actual = environments.read(case, "pack", what="step")
    assert len(expected) == len(actual) == (2 if case == "array" else 1)
    allowed = OF_A_PACK_MEMBER | OF_EVERY_STEP | ({} if "mem" in case else WITHOUT_MEM)
    for sbatch, member in zip(expected, actual, strict=True):
        assert compare(sbatch, member, allowed) == []


@pytest.mark.parametrize("how", ["alone", "pack"])
def test_export_reaches_exactly_what_it_names(environments: Environments, how: str) -> None:
    [chosen] = environments.read("export-value", how)
    assert (chosen["FOO"], chosen["NEW"]) == ("bar", "new")
    assert "LINES_AND" not in chosen
    [none] = environments.read("export-none", how)
    assert not {"FOO", "NEW", "XDG_STATE_HOME"} & none.keys()
    # The login environment, as sbatch loads it on the node.
    assert none["LOGNAME"] == environments.user.name
    assert none["HOME"] != str(environments.user.home)


def test_memory_that_was_not_asked_for_is_the_members_share(environments: Environments) -> None:
    [member] = environments.read("plain", "pack")
    assert member["SLURM_MEM_PER_NODE"] == read_inside(member)["host_memory_mb"]
    assert "SLURM_MEM_PER_CPU" not in member


@pytest.mark.smoke
def test_the_own_directories_and_ports_of_neighbours_differ(user: CsubUser) -> None:
    body = """
touch "$TMPDIR/mine"
echo "$TMPDIR $(stat -c %a "$TMPDIR") $MASTER_PORT $PET_MASTER_PORT $OMP_NUM_THREADS"
touch up.$SLURM_ARRAY_TASK_ID
while [ $(ls up.* | wc -l) -lt 3 ]; do sleep 0.1; done
ls "$TMPDIR"
"""
    script = user.script("own.sh", body)
    job_id = user.submit("--array=1-3", "--gres=gpu:1", "-c2", script.name)
    rows = user.finish(job_id)
    assert [row["state"] for row in rows.values()] == ["COMPLETED"] * 3
    lines = [user.output(f"slurm-{job_id}_{number}.out").splitlines() for number in (1, 2, 3)]
    fields = [line[0].split() for line in lines]
    assert len({tmpdir for tmpdir, *_ in fields}) == 3
    assert len({port for _, _, port, *_ in fields}) == 3
    for (_, mode, port, pet_port, threads), (_, listed) in zip(fields, lines, strict=True):
        assert mode == "700"
        assert port == pet_port
        assert threads == "2"
        assert listed == "mine"
    gone = user.run(["ls", *(tmpdir for tmpdir, *_ in fields)], check=False)
    assert gone.stdout == ""


def test_what_the_user_set_stays_as_it_is(user: CsubUser) -> None:
    own = user.home / "scratch"
    user.extra |= {
        "TMPDIR": str(own),
        "MASTER_PORT": "4242",
        "PET_MASTER_PORT": "4343",
        "OMP_NUM_THREADS": "7",
    }
    user.run(["mkdir", str(own)])
    script = user.script(
        "set.sh", 'echo "$TMPDIR $MASTER_PORT $PET_MASTER_PORT $OMP_NUM_THREADS"; echo > $TMPDIR/x'
    )
    job_id = user.submit("pack", "--gres=gpu:1", script.name, script.name)
    lone = user.submit("--gres=gpu:1", script.name)
    user.finish(job_id)
    user.finish(lone)
    for name in (f"slurm-{job_id}_1.out", f"slurm-{job_id}_2.out", f"slurm-{lone}.out"):
        assert user.output(name) == f"{own} 4242 4343 7\n"
    assert own.is_dir()


def test_a_tmpdir_that_is_not_there_is_made_as_sbatch_makes_it(user: CsubUser) -> None:
    script = user.script("tmp.sh", 'echo "$TMPDIR"; stat -c %a "$TMPDIR"')
    user.extra["TMPDIR"] = f"{user.home}/a/b"
    user.run(["sbatch", "--parsable", "-o", "sbatch.out", script.name])
    wait_until(lambda: "/tmp" in user.output("sbatch.out"), "sbatch's job")
    user.extra["TMPDIR"] = f"{user.home}/fresh"
    made = user.submit("pack", "--gres=gpu:1", script.name, script.name)
    user.finish(made)
    assert user.output(f"slurm-{made}_1.out") == f"{user.home}/fresh\n700\n"
    user.extra["TMPDIR"] = f"{user.home}/a/b"
    instead = user.submit("pack", "--gres=gpu:1", script.name, script.name)
    user.finish(instead)
    assert user.output(f"slurm-{instead}_1.out").splitlines()[-2] == "/tmp"


def test_jobs_that_a_member_submits_see_nothing_of_the_member(user: CsubUser) -> None:
    user.script("inner.sh", '/usr/bin/env -0 > "inner.$1"; srun -n1 echo "step of $1"')
    user.script(
        "outer.sh",
        """
echo -n "$TMPDIR" > outer.tmpdir
sbatch -o sbatch.out inner.sh sbatch
csub -o csub.out inner.sh alone
csub pack --gres=gpu:1 -o pack.%a.out "inner.sh member" "inner.sh neighbour"
""",
    )
    user.script("quiet.sh", "exit 0")
    job_id = user.submit("pack", "--gres=gpu:1", "outer.sh", "quiet.sh")
    user.finish(job_id)
    wait_until(lambda: "step of sbatch" in user.output("sbatch.out"), "sbatch's job has run")
    wait_until(lambda: "step of alone" in user.output("csub.out"), "the lone job has run")
    wait_until(lambda: "step of member" in user.output("pack.1.out"), "the member has run")
    for name in ("sbatch", "alone", "member"):
        words = (user.home / f"inner.{name}").read_text().split("\0")
        seen = dict(word.partition("=")[::2] for word in words if word)
        assert seen["SLURM_JOB_ID"] != job_id
        outer = [word for word in words if (user.home / "outer.tmpdir").read_text() in word]
        assert outer == []
        shims = [folder for folder in seen["PATH"].split(":") if folder.endswith("/bin")]
        packs = [folder for folder in shims if str(user.state) in folder]
        assert len(packs) == (1 if name == "member" else 0)
        if name != "member":
            assert not {"OMP_NUM_THREADS", "SLURM_OVERLAP", "SLURM_COLLOC_PACK"} & seen.keys()
