"""site-config/job_submit.lua: in a Lua of its own, and in a real slurmctld."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_colloc.model.comment_token import parse_token
from slurm_colloc_lab.sandbox.cluster import Sandbox

from ..bed import CsubUser, running_sandbox, user_of
from ..cluster.conftest import accounts
from .test_shell import ANY_COMMENT, HOSTILE_COMMENTS, TOKENS

__all__ = ["accounts"]  # a fixture

SCRIPT = Path(__file__).resolve().parents[2] / "site-config" / "job_submit.lua"
NAMES = ("lua", "lua5.1", "lua5.2", "lua5.3", "lua5.4", "luajit")
LUAS = [name for name in NAMES if shutil.which(name)]
# Reads jobs from its input, a line each: kind, partition, account and comment in hexadecimal ("-"
# is nil); says what the script makes of each: its verdict and the comment.
DRIVER = """\
slurm = {SUCCESS = 0, ERROR = -1, log_info = string.format, log_user = string.format,
         log_error = function(...) io.stderr:write(string.format(...)) end}
dofile(arg[1])
local function read(word)
    if word == "-" then return nil end
    return (word:sub(2):gsub("..", function(pair) return string.char(tonumber(pair, 16)) end))
end
local parts = {gpu = {name = "gpu", flag_default = 1}, slow = {name = "slow", flag_default = 0}}
for line in io.lines() do
    local kind, partition, account, comment = line:match("(%S+) (%S+) (%S+) (%S+)")
    local desc = {partition = read(partition), account = read(account), comment = read(comment)}
    local code
    if kind == "submit" then
        code = slurm_job_submit(desc, parts, 1000)
    else
        code = slurm_job_modify(desc, {partition = "gpu", account = "lab"}, parts, 1000)
    end
    local text = desc.comment
    print(code, text and "x" .. text:gsub(".", function(c)
        return string.format("%02x", c:byte()) end):gsub("\\n", "0a") or "-")
end
"""


NOTICE = """
local submit = slurm_job_submit
function slurm_job_submit(desc, parts, uid)
    if desc.name == "billed" then slurm.log_user("this job is billed\\nto its account") end
    return submit(desc, parts, uid)
end
"""


def write_policy(folder: Path, values: Mapping[str, str]) -> Path:
    """The script as a site would have edited it."""
    lines = SCRIPT.read_text().splitlines()
    for key, value in values.items():
        (place,) = [n for n, line in enumerate(lines) if line.startswith(f"    {key} = ")]
        lines[place] = f"    {key} = {value},"
    path = folder / "job_submit.lua"
    path.write_text("\n".join(lines) + "\n")
    return path


class Judge:
    """The script in one Lua."""

    def __init__(self, lua: str, folder: Path, **policy: str) -> None:
        self._lua = lua
        self._script = write_policy(folder, policy)
        self._driver = folder / "driver.lua"
        self._driver.write_text(DRIVER)

    def ask(
        self,
        comments: list[bytes | None],
        *,
        kind: str = "submit",
        partition: str | None = None,
        account: str | None = None,
    ) -> list[tuple[bool, bytes | None]]:
        """For each comment whether its job is refused, and what the comment becomes."""

        def write(text: bytes | None) -> str:
            return "-" if text is None else f"x{text.hex()}"

        names = [None if name is None else name.encode() for name in (partition, account)]
        head = f"{kind} {write(names[0])} {write(names[1])}"
        ended = subprocess.run(
            [self._lua, str(self._driver), str(self._script)],
            input="".join(f"{head} {write(comment)}\n" for comment in comments),
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert ended.stderr == ""
        answers = []
        for line in ended.stdout.splitlines():
            code, text = line.split()
            answers.append((code != "0", None if text == "-" else bytes.fromhex(text[1:])))
        assert len(answers) == len(comments)
        return answers


@pytest.fixture(scope="module", params=LUAS or ["none"])
def lua(request: pytest.FixtureRequest) -> str:
    if not LUAS:
        pytest.skip(f"none of {', '.join(NAMES)} is installed")
    return str(request.param)


def test_as_it_is_shipped_every_comment_stays(lua: str, tmp_path: Path) -> None:
    judge = Judge(lua, tmp_path)
    kept = [None, *HOSTILE_COMMENTS, b"[csub/1 mps]", b"a [csub/1 off]"]
    for kind in ("submit", "modify"):
        assert judge.ask(kept, kind=kind) == [(False, comment) for comment in kept]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(comments=st.lists(ANY_COMMENT.filter(bool), min_size=20, max_size=60))
def test_the_script_and_the_program_agree_on_what_a_token_is(
    lua: str, tmp_path_factory: pytest.TempPathFactory, comments: list[bytes]
) -> None:
    judge = Judge(lua, tmp_path_factory.mktemp("lua"), modes="{}", not_allowed='"refuse"')
    comments += [*HOSTILE_COMMENTS[:20], *TOKENS]
    refused = [answer[0] for answer in judge.ask([*comments])]
    assert refused == [parse_token(os.fsdecode(comment)) is not None for comment in comments]


def test_a_token_that_is_not_allowed_is_taken_out(lua: str, tmp_path: Path) -> None:
    judge = Judge(lua, tmp_path, partitions='{ "gpu", "big" }', accounts='{ "lab" }')
    token, mig, without = b"a [x]  [csub/1 mps]", b"[csub/1 mig=1g+1g]", b"a [x] "
    for partition, account, comment, becomes in (
        ("gpu", "lab", token, token),
        ("gpu,big", "lab", token, token),
        # The default partition.
        (None, "lab", token, token),
        ("slow", "lab", token, without),
        ("gpu,slow", "lab", token, without),
        ("gpu", "other", token, without),
        ("gpu", None, token, without),
        ("gpu", "lab", mig, b""),
        ("slow", "lab", b"[csub-pack=x] [csub/1 mps]", b"[csub-pack=x]"),
        ("slow", "lab", b"[csub/1 mps] [csub/1 off]", b"[csub/1 mps]"),
    ):
        answer = judge.ask([comment], partition=partition, account=account)
        assert answer == [(False, becomes)], (partition, account, comment)
    # A change speaks of the job as it is; one of something else leaves the comment alone.
    assert judge.ask([token, None], kind="modify") == [(False, token), (False, None)]
    assert judge.ask([token], kind="modify", partition="slow") == [(False, without)]


def test_a_site_may_refuse_instead(lua: str, tmp_path: Path) -> None:
    judge = Judge(
        lua, tmp_path, modes='{ "mig" }', not_allowed='"refuse"', malformed='"refuse"'
    )  # fmt: skip
    for kind in ("submit", "modify"):
        assert judge.ask([b"[csub/1 mps]", b"[csub/1 mig=7g]", b"[csub/1 wrong]"], kind=kind) == [
            (True, b"[csub/1 mps]"),
            (False, b"[csub/1 mig=7g]"),
            (True, b"[csub/1 wrong]"),
        ]


def test_what_only_looks_like_a_token_may_be_taken_out(lua: str, tmp_path: Path) -> None:
    judge = Judge(lua, tmp_path, malformed='"strip"')
    looks = [b"a [csub/1 wrong]", b"a [csub/2 mps]", b"a[csub/1 mps]", b"a [csub/1 mps]\n"]
    assert judge.ask([*looks]) == [(False, b"a")] * 4
    kept = [b"a [csub-pack=x]", b"a [csub/1 mps] b", b"[csub/1", b"a]", None]
    assert judge.ask([*kept]) == [(False, comment) for comment in kept]


def test_a_site_may_add_the_token(lua: str, tmp_path: Path) -> None:
    judge = Judge(lua, tmp_path, add='{ ["slow"] = "mps" }')
    given = [None, b"", b"mine", b"[csub/1 off]", b"x" * 1012]
    assert judge.ask([*given], partition="slow") == [
        (False, b"[csub/1 mps]"),
        (False, b"[csub/1 mps]"),
        (False, b"mine [csub/1 mps]"),
        (False, b"[csub/1 off]"),
        (False, b"x" * 1012),
    ]
    assert judge.ask([*given]) == [(False, comment) for comment in given]
    assert judge.ask([b"mine"], kind="modify", partition="slow") == [(False, b"mine")]


def test_switched_off_it_does_nothing(lua: str, tmp_path: Path) -> None:
    judge = Judge(
        lua, tmp_path, enabled="false", modes="{}", malformed='"refuse"', add='{ ["gpu"] = "mps" }'
    )
    kept = [None, b"[csub/1 mps]", b"[csub/1 wrong]"]
    assert judge.ask([*kept], partition="gpu") == [(False, comment) for comment in kept]


def test_a_fault_of_the_script_lets_jobs_pass(lua: str, tmp_path: Path) -> None:
    script = write_policy(tmp_path, {"partitions": "3"})
    lines = (
        "slurm = {SUCCESS = 0, ERROR = -1, log_error = function() io.write('told ') end}",
        f"dofile({str(script)!r})",
        "io.write(slurm_job_submit({comment = '[csub/1 mps]', partition = 'gpu'}, {}, 1))",
    )
    ended = subprocess.run(
        [lua, "-"], input="\n".join(lines), capture_output=True, text=True, check=True
    )
    assert ended.stdout == "told 0"


@pytest.fixture(scope="module")
def controlled() -> Iterator[Sandbox]:
    """A controller that runs the script."""
    # Everybody's commands read it.
    folder = Path(tempfile.mkdtemp(prefix="conf", dir="/var/tmp"))
    folder.chmod(0o755)
    try:
        with controller_with(folder / "more.conf") as sandbox:
            yield sandbox
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def controller_with(more: Path) -> Iterator[Sandbox]:
    """A sandbox that is given the script once it has a folder for it."""
    more.write_text("")
    more.chmod(0o644)
    with running_sandbox(nodes=1, extra_conf=(f"Include {more}",)) as sandbox:
        shown = subprocess.run(
            ["scontrol", "show", "config"],
            env={**os.environ, **sandbox.env()}, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        (folders,) = [
            line.split()[2] for line in shown.splitlines() if line.startswith("PluginDir")
        ]
        if not any(Path(name, "job_submit_lua.so").exists() for name in folders.split(":")):
            pytest.skip("this Slurm has no Lua")
        write_policy(
            sandbox.layout.etc,
            {"modes": '{ "mps" }', "partitions": '{ "gpu" }', "malformed": '"refuse"'},
        )
        script = sandbox.layout.etc / SCRIPT.name
        head, returned, tail = script.read_text().rpartition("return slurm.SUCCESS")
        script.write_text(f"{head}{NOTICE}{returned}{tail}")
        more.write_text("JobSubmitPlugins=lua\n")
        sandbox.stop_controller()
        sandbox.start_controller()
        yield sandbox


@pytest.fixture
def user(controlled: Sandbox, accounts: tuple[str, ...]) -> Iterator[CsubUser]:
    with user_of(controlled, accounts[0]) as somebody:
        yield somebody


@pytest.mark.smoke
@pytest.mark.slurm
def test_a_real_controller_runs_it(user: CsubUser) -> None:
    def submit(comment: str, *words: str) -> str:
        return user.run(
            ["sbatch", "--parsable", "--hold", "--output=/dev/null", f"--comment={comment}", *words,
             "--wrap=true"]
        ).stdout.strip()  # fmt: skip

    def read(job_id: str) -> str:
        return user.run(["squeue", "-h", f"--jobs={job_id}", "--format=%k"]).stdout.rstrip("\n")

    kept = submit("a [csub/1 mps]")
    assert read(kept) == "a [csub/1 mps]"
    assert read(submit("a [csub/1 off]")) == "a"
    assert read(submit("a [csub/1 mps]", "--partition=preempt")) == "a"
    assert read(submit("a [csub/1 mps]", "--partition=gpu,preempt")) == "a"
    wrong = ["sbatch", "--comment=[csub/1 $(reboot)]", "--wrap=true"]
    refused = user.run(wrong, check=False)
    assert refused.returncode != 0
    assert "csub: the token in --comment is refused" in refused.stderr
    user.run(["scontrol", "update", f"JobId={kept}", "Comment=b [csub/1 mig=7g]"])
    assert read(kept) == "b"
    user.run(["scontrol", "update", f"JobId={kept}", "Comment=c [csub/1 mps]"])
    assert read(kept) == "c [csub/1 mps]"
    # Of csub's own comments the mark stays in any case, by which it finds its packs.
    user.script("a.sh", "true", directives="#SBATCH --gres=gpu:1 --mem=200M --time=5")
    for words, ends in (((), "] [csub/1 mps]"), (("--partition=preempt",), "]")):
        job_id = user.submit("--hold", *words, "--array=1-2", "a.sh")
        comment = read(job_id)
        assert comment.startswith("[csub-pack=")
        assert comment.endswith(ends)
        assert ("csub/1" in comment) is (words == ())
        user.csub("release", job_id)
        assert {row["state"] for row in user.finish(job_id).values()} == {"COMPLETED"}


@pytest.mark.slurm
def test_what_the_site_says_of_a_job_that_it_takes_is_said_once(user: CsubUser) -> None:
    user.script("a.sh", "true", directives="#SBATCH --gres=gpu:1 --mem=200M --time=5 -J billed")
    plain = user.run(["sbatch", "--hold", "--output=/dev/null", "a.sh"])
    lines = plain.stderr.splitlines()
    assert [line.rsplit(": ", 1)[1] for line in lines] == ["this job is billed", "to its account"]
    # Four packs, which may be several Slurm jobs, and sbatch speaks for each.
    for words in ((), ("--parsable",), ("--array=1-4", "--degree=1"), ("--share=exclusive",)):
        told = user.csub(*words, "--hold", "a.sh")
        assert told.stderr.splitlines()[:2] == lines
        assert told.stderr.count("billed") == 1
        job_id = told.stdout.split()[-1]
        assert "billed" not in told.stdout
        user.csub("cancel", job_id)
    user.script("fail.sh", "exit 1", directives="#SBATCH --gres=gpu:1 --mem=200M --time=5")
    job_id = user.submit("--array=1-2", "-J", "billed", "fail.sh")
    user.finish(job_id)
    retried = user.csub("retry", job_id)
    assert retried.stderr.splitlines()[:2] == lines
