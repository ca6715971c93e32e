"""Whether csub reads options and directives as the sbatch that is installed reads them.

What sbatch took is what `sbatch -v` says, what squeue shows, and what the job found; what it
refused, it refused. Where csub refuses what sbatch takes, docs/differences.md says so, and the
texts are listed here by their form.
"""

from __future__ import annotations

import random
import re
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job_ids import parse_array
from slurm_colloc.model.job_values import (
    compute_captured,
    parse_dependency,
    parse_mail_types,
)
from slurm_colloc.model.quantities import (
    parse_gpu_request,
    parse_host_memory_mb,
    parse_signal_request,
    parse_time_limit_s,
)
from slurm_colloc.slurm.options import merge_options, parse_command_line
from slurm_colloc.slurm.slurm_commands import expand_node_list
from slurm_colloc.submission.jobs.directives import parse_directives
from slurm_colloc.submission.jobs.job_options import read_input, read_open_mode, read_output

from ..bed import CsubUser
from ..wait_until import wait_until

pytestmark = pytest.mark.slurm

SEEDS = range(2)
_SAID = re.compile(r"^sbatch: (\S+) *: (.*)$", re.MULTILINE)
REFUSED = "refused"


def ask_sbatch(user: CsubUser, words: Sequence[str], script: str | None = None) -> Any:
    """The options that sbatch has understood, by name, or REFUSED."""
    given = ["--wrap=true"] if script is None else []
    argv = ["sbatch", "-v", "--hold", *words, *given]
    ended = user.run(argv, check=False, stdin=script)
    return dict(_SAID.findall(ended.stderr)) if ended.returncode == 0 else REFUSED


def read(parse: Callable[[str], Any], text: str) -> Any:
    """What csub makes of it, or REFUSED."""
    try:
        return parse(text)
    except (ValueError, UsageProblem):
        return REFUSED


def draw(rng: random.Random, characters: str, least: int, most: int) -> str:
    return "".join(rng.choice(characters) for _ in range(rng.randint(least, most)))


# --time


TIMES = ("5", "0", "1:30", "1-2", "1-2:3:4", "0:30", "Infinite", "unlimited", "-1", "1-", "1:2:3:4")


def compare_time(user: CsubUser, text: str) -> None:
    found = ask_sbatch(user, [f"--time={text}"])
    ours = read(parse_time_limit_s, text)
    # sbatch lets these run over its numbers, and gives some limit or other.
    overflows = re.fullmatch(r"-\d+", text) or re.search(r"\d{5,}", text)
    if ours == REFUSED:
        assert found == REFUSED or overflows, (text, found)
    elif ours is None:
        assert found["time"] in ("UNLIMITED", "INFINITE"), text
    else:
        assert read(parse_time_limit_s, found["time"]) == -(-ours // 60) * 60, text


@pytest.mark.parametrize("seed", SEEDS)
def test_times(user: CsubUser, seed: int) -> None:
    rng = random.Random(seed)
    for text in [*TIMES, *(draw(rng, "0123456789-::", 1, 7) for _ in range(60))]:
        compare_time(user, text)


# --mem


MEMORIES = (
    "1",
    "1k",
    "1025K",
    "1KB",
    "1Kb",
    "1kib",
    "1.5G",
    " 5",
    "5 ",
    "+5",
    "-5",
    "0",
    "G",
    "1P",
)


_MANY_MB = 500


def compare_memory(user: CsubUser, text: str) -> None:
    found = ask_sbatch(user, [f"--mem={text}"])
    ours = read(parse_host_memory_mb, text)
    if REFUSED in (ours, found):
        # More than the nodes have is refused by the controller.
        assert found == REFUSED, text
        assert ours == REFUSED or ours > _MANY_MB, text
    else:
        assert ours == read(parse_host_memory_mb, found["mem"].rstrip("?")), text


@pytest.mark.parametrize("seed", SEEDS)
def test_host_memory(user: CsubUser, seed: int) -> None:
    rng = random.Random(seed)
    for text in [*MEMORIES, *(draw(rng, "0123KkMmGgTbB.+ ", 1, 5) for _ in range(60))]:
        compare_memory(user, text)


# --mail-type


MAILS = ("none", "all", "Begin", "END", "fail", "time_limit", "TIME_LIMIT_90", "array_tasks",
         "Invalid_Depend", "foo", "", " END")  # fmt: skip
_MAILS_OF_ALL = {"BEGIN", "END", "FAIL", "REQUEUE"}


def compare_mail(user: CsubUser, text: str) -> None:
    found = ask_sbatch(user, [f"--mail-type={text}"])
    ours = read(parse_mail_types, text)
    if REFUSED in (ours, found):
        assert found == ours, text
        return
    events, each_task = ours
    told = set(found["mail-type"].split(",")) - {"NONE", "INVALID_DEPEND", "STAGE_OUT"}
    assert each_task == ("ARRAY_TASKS" in told), text
    assert set(events) == told - {"ARRAY_TASKS"}, text


@pytest.mark.parametrize("seed", SEEDS)
def test_mail_types(user: CsubUser, seed: int) -> None:
    rng = random.Random(seed)
    lists = [",".join(rng.choices(MAILS, k=rng.randint(1, 4))) for _ in range(40)]
    for text in [*MAILS, *lists]:
        compare_mail(user, text)


# --signal


SIGNALS = ("USR1", "usr1", "SigUsr1", "10", "b:usr1", "R:10", "rb:1@5", "BR:1", "BB:1", "B10",
           "USR1@", "USR1@65535", "USR1@65536", "USR1@-1", "@5", "B:", "0", "64", "CHLD", "SEGV",
           "PIPE", "RTMIN", ":USR1", " usr1 ", "10 ", "1.5", "USR1@5x", "40")  # fmt: skip


def compare_signal(user: CsubUser, text: str) -> None:
    found = ask_sbatch(user, [f"--signal={text}"])
    ours = read(parse_signal_request, text)
    # No system has such a signal, and Slurm sends none.
    is_nonsense = re.search(r"(^|:)\s*(-|\d{3,}|6[5-9]|[7-9]\d)", text)
    if REFUSED in (ours, found):
        assert found == ours or is_nonsense, (text, found, ours)
        return
    again = parse_signal_request(found["signal"])
    assert again == ours, (text, found["signal"])


@pytest.mark.parametrize("seed", SEEDS)
def test_signals(user: CsubUser, seed: int) -> None:
    rng = random.Random(seed)
    made = [
        draw(rng, "RBrb:", 0, 3)
        + rng.choice(["USR1", "10", "usr2", "FOO", "Cont"])
        + rng.choice(["", "@", "@5", "@60:1", "@+7"])
        for _ in range(40)
    ]
    for text in [*SIGNALS, *made]:
        compare_signal(user, text)


# --array


ARRAYS = ("1", "0-3", "0-7%2", "1,3,5-9:2", "0-3%0", "3-1", "0-9:0", "0-9:20", "1,1,2", " 1", "1 ",
          "1, 2", "[0-3]", "[0-3]%2", "1,,2", "0-3%2,5", "1-3-5", "00-03", "0x3", "a")  # fmt: skip
_ARRAY_OF_THE_MANUAL = re.compile(r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?")


def expand_tasks(shown: str) -> set[int]:
    """The tasks that squeue shows, as `1,3-9:2`."""
    found: set[int] = set()
    for part in shown.split(","):
        ends, _, step = part.partition(":")
        first, _, last = ends.partition("-")
        found.update(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def compare_arrays(user: CsubUser, texts: Sequence[str]) -> None:
    submitted = {}
    for text in texts:
        argv = ["sbatch", "--hold", "--parsable", f"--array={text}", "--wrap=true"]
        ended = user.run(argv, check=False)
        submitted[text] = ended.stdout.strip() if ended.returncode == 0 else REFUSED
    # 0: as long as it may be. `squeue -r` would leave the last task of a range with a step out.
    whole = {"SLURM_BITSTR_LEN": "0"}
    rows = user.run(["squeue", "--me", "-h", "-o", "%F %K"], environment=whole).stdout
    shown = dict(line.split() for line in rows.splitlines())
    for text, job in submitted.items():
        ours = read(parse_array, text)
        if ours == REFUSED:
            # sbatch reads what is no number as 0, and passes over the rest.
            assert job == REFUSED or not _ARRAY_OF_THE_MANUAL.fullmatch(text), text
        else:
            assert job != REFUSED, text
            tasks, _, limit = shown[job].partition("%")
            assert set(ours.task_ids) == expand_tasks(tasks), text
            assert str(ours.limit or "") == limit, text
    user.run(["scancel", "--me"])


@pytest.mark.parametrize("seed", SEEDS)
def test_arrays(user: CsubUser, seed: int) -> None:
    rng = random.Random(seed)
    made = [draw(rng, "01234,,-:%", 1, 7) for _ in range(40)]
    ranges = [f"{rng.randint(0, 9)}-{rng.randint(0, 30)}:{rng.randint(1, 9)}" for _ in range(10)]
    compare_arrays(user, [*ARRAYS, *made, *ranges])


# --gres


GRES = ("gpu", "gpu:1", "gpu:2", "GPU:1", "gpu:0", "gres:gpu:2", "none", "NONE", "gpu:1,gpu:2",
        "gpu:2,gpu", "gpu,gpu", "gpu:0,gpu:1", "gpu:", "gpu::2", "gpus:1", "gpu:x", "gpu:1:1",
        "gpu:1,")  # fmt: skip


def compare_gres(user: CsubUser, texts: Sequence[str]) -> None:
    """By what the jobs get: a request is shown as it was written."""
    submitted = {}
    program = 'f=gpus.$SLURM_JOB_ID; echo "$SLURM_JOB_GPUS" >$f.part; mv $f.part $f'
    for text in texts:
        argv = [
            "sbatch",
            "--parsable",
            "--time=1",
            "--mem=1",
            f"--gres={text}",
            f"--wrap={program}",
        ]
        ended = user.run([*argv, "--output=/dev/null"], check=False)
        submitted[text] = ended.stdout.strip() if ended.returncode == 0 else REFUSED
    for text, job in submitted.items():
        ours = read(parse_gpu_request, text)
        if job == REFUSED:
            continue
        answer = user.home / f"gpus.{job}"
        wait_until(answer.exists, f"the job with --gres={text} has run")
        given = [word for word in answer.read_text().strip().split(",") if word]
        # A blank before a number is no number to csub.
        assert ours != REFUSED or " " in text, text
        assert ours == REFUSED or (ours.count == len(given) and not ours.other_gres), text


@pytest.mark.parametrize("seed", SEEDS)
def test_gres(user: CsubUser, seed: int) -> None:
    rng = random.Random(seed)
    compare_gres(user, [*GRES, *(f"gpu{draw(rng, ':=012,gpuk', 0, 5)}" for _ in range(30))])


# --export


EXPORTS = (
    "all,QW=1",
    "All",
    'ALL,QC={"lr":0.1}',
    "ALL,QM='a,b',QW=2",
    "QC=don't",
    "QC=don't,QW=1",
    "'QM=a,b',QA",
    '"QM=a,b"',
    "nil",
    "None",
    "NONE,QW=1",
    "QA=x,ALL",
    "ALL,QA=x",
    "qa",
    "QB,,QC=",
    "QC='a\"b,c\"'",
)
OWN = {"QA": "a0", "QB": "b 0", "QE": "it's"}


def draw_export(rng: random.Random) -> str:
    words = []
    for _ in range(rng.randint(1, 4)):
        word = rng.choice(["all", "ALL", "NONE", "QA", "QB", "qa", *["QC=", "QA=", "QM="] * 3])
        if word.endswith("="):
            word += draw(rng, "ab',\"{}: =", 0, 6)
        quote = rng.choice(["", "", "", "'", '"'])
        words.append(f"{quote}{word}{quote}")
    return ",".join(words)


def compare_exports(user: CsubUser, texts: Sequence[str]) -> None:
    for number, text in enumerate(texts):
        name = f"env.{number}"
        program = f"env -0 >{name}.part; mv {name}.part {name}"
        argv = ["sbatch", "--time=2", "--mem=1", "--output=/dev/null", f"--export={text}"]
        user.run([*argv, f"--wrap={program}"], environment=OWN)
    for number, text in enumerate(texts):
        answer = user.home / f"env.{number}"
        wait_until(answer.exists, f"the job with --export={text} has run")
        rows = (row.partition("=") for row in answer.read_text().split("\0"))
        found = {name: value for name, _, value in rows if name.startswith("Q")}
        ours = compute_captured({**user.environment, **OWN}, text)
        assert {name: ours[name] for name in ours if name.startswith("Q")} == found, text


@pytest.mark.parametrize("seed", SEEDS)
def test_exports(user: CsubUser, seed: int) -> None:
    rng = random.Random(seed)
    compare_exports(user, [*EXPORTS, *(draw_export(rng) for _ in range(24))])


# Words


WORDS = ("--open-mode=Append", "--open-mode=T", "--open-mode=x", "--input=NONE", "--output=none",
         "--error=None", "--output=x%j", "--dependency=SINGLETON", "--dependency=AfterAny:1",
         "--dependency=AFTEROK:HELD")  # fmt: skip


def read_word(text: str) -> Any:
    """What csub makes of an option, as sbatch would show it."""
    (given,) = parse_command_line([text]).values
    options = merge_options(command_line=[given])
    name = given.option.name
    if name == "open-mode":
        return "t" if read_open_mode(options) else "a"
    if name == "dependency":
        return str(parse_dependency(given.value or "").conditions[0])
    return (read_input(options) or "/dev/null") if name == "input" else read_output(options, name)


@pytest.mark.smoke
@pytest.mark.parametrize("text", WORDS)
def test_words_count_in_any_case(user: CsubUser, text: str) -> None:
    if "HELD" in text:
        # Slurm 24.11 and later refuse a job that they do not know.
        held = user.run(["sbatch", "--parsable", "--hold", "--wrap=true"]).stdout.strip()
        text = text.replace("HELD", held)
    found, ours = ask_sbatch(user, [text]), read(read_word, text)
    if REFUSED in (found, ours):
        assert found == ours
        return
    shown = found[text[2:].partition("=")[0]].removeprefix(f"{user.home}/")
    # This one slurmctld reads, and sbatch hands it on as it is.
    assert ours == (shown.lower() if "dependency" in text else shown)


# #SBATCH lines


DIRECTIVES = (
    "#SBATCH --comment='a b' --wckey=c",
    '#SBATCH --comment="a\\"b" --wckey c',
    "#SBATCH --comment=a\\\\b\n#SBATCH --wckey='#x'",
    "#SBATCH --comment=a#b --wckey=c",
    '#SBATCH\t--comment=it\\\'s\n#SBATCH --wckey="d\\e"',
    "#SBATCH --comment='a",
    "#SBATCH --comment=a :b",
)
_DOCUMENTED = re.compile(r"\\[ \t]|\\$|(^|[ \t=])(''|\"\")+([ \t]|$)", re.MULTILINE)
"""A backslash before a blank, and an empty quoted word."""


def compare_directives(user: CsubUser, lines: str) -> None:
    script = f"#!/bin/sh\n{lines}\ntrue\n"
    found = ask_sbatch(user, [], script)
    ours = read(lambda text: parse_directives(text.encode(), name="x.sh"), script)
    if REFUSED in (ours, found):
        # sbatch drops all that follows a word that is no option.
        assert found == ours or not {"comment", "wckey"} & set(found), (lines, found)
        return
    values = {given.option.name: given.value.strip() for given in ours}
    told = {name: found[name].strip() for name in ("comment", "wckey") if name in found}
    assert values == {name: "" if text == "(null)" else text for name, text in told.items()}, lines


@pytest.mark.parametrize("seed", SEEDS)
def test_quotes_in_directives(user: CsubUser, seed: int) -> None:
    rng = random.Random(seed)
    forms = (
        "#SBATCH --comment={} --wckey={}",
        "#SBATCH --comment={}\n#SBATCH --wckey={}",
        "#SBATCH --comment {} --wckey {}",
    )
    made: list[str] = []
    while len(made) < 100:
        values = [draw(rng, "ab  '\"\\#:=\t$,", 1, 7) for _ in range(2)]
        lines = rng.choice(forms).format(*values)
        if not _DOCUMENTED.search(lines):
            made.append(lines)
    for lines in [*DIRECTIVES, *made]:
        compare_directives(user, lines)


# Lists of nodes


@pytest.mark.parametrize("seed", SEEDS)
def test_lists_of_nodes(user: CsubUser, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(20):
        width = rng.choice([1, 2, 3])
        prefixes = rng.sample(["n", "gpu-", "r1n", "a"], rng.randint(1, 3))
        names = {f"{rng.choice(prefixes)}{rng.randint(0, 120):0{width}d}" for _ in range(9)}
        written = user.run(["scontrol", "show", "hostlist", ",".join(sorted(names))]).stdout.strip()
        said = user.run(["scontrol", "show", "hostnames", written]).stdout.split()
        assert expand_node_list(written) == said, written
        assert set(said) == names


# #CSUB lines, which are a shell's


def ask_shell(text: str) -> list[str] | str:
    """The words that a shell makes of it."""
    program = f"set -- {text}\nprintf '%s\\0' \"$@\""
    ended = subprocess.run(["sh", "-c", program], capture_output=True, text=True, check=False)
    if ended.returncode or ended.stderr:
        return REFUSED
    return ended.stdout.split("\0")[:-1]


def read_own_line(text: str) -> list[str] | str:
    try:
        given = parse_directives(f"#!/bin/sh\n#CSUB {text}\n".encode(), name="x.sh")
    except UsageProblem:
        return REFUSED
    return [value.value or "" for value in given]


def test_quotes_on_own_lines_are_those_of_a_shell() -> None:
    rng = random.Random(7)
    compared = 0
    for _ in range(400):
        value = draw(rng, "ab \\\"'#\t=%", 1, 9)
        line = f"--profile-like={value}"
        words, ours = ask_shell(line), read_own_line(line)
        if words == REFUSED:
            assert ours == REFUSED, line
        elif len(words) == 1:
            assert ours == [words[0].partition("=")[2]], line
            compared += 1
    assert compared > 50


@pytest.mark.smoke
def test_a_sample_of_all(user: CsubUser) -> None:
    for text in TIMES[:5]:
        compare_time(user, text)
    for text in MEMORIES[:4]:
        compare_memory(user, text)
    for text in MAILS[:3]:
        compare_mail(user, text)
    for text in SIGNALS[4:8]:
        compare_signal(user, text)
    for lines in DIRECTIVES[:3]:
        compare_directives(user, lines)
    compare_arrays(user, ("1, 2", "0-7%2", "1,3,5-9:2"))
    compare_gres(user, ("gpu:1,gpu:2", "gres:gpu:2"))
    compare_exports(user, EXPORTS[:5])


@pytest.mark.smoke
def test_what_a_member_gets_of_its_exports_is_what_a_job_gets(user: CsubUser) -> None:
    user.script("env.sh", 'env -0 >"$1.part"; mv "$1.part" "$1"')
    for number, text in enumerate(EXPORTS[:5]):
        for command, name in (("sbatch", "job"), ("csub", "member")):
            argv = [command, "--gres=gpu:1", "--time=2", "--mem=50M", f"--export={text}"]
            user.run([*argv, "env.sh", f"{name}.{number}"], environment=OWN)
    for number, text in enumerate(EXPORTS[:5]):
        found = []
        for name in ("job", "member"):
            answer = user.home / f"{name}.{number}"
            wait_until(answer.exists, f"the {name} with --export={text} has run")
            rows = (row.partition("=") for row in answer.read_text().split("\0"))
            found.append({key: value for key, _, value in rows if key.startswith("Q")})
        assert found[0] == found[1], text
