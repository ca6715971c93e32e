from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.quantities import parse_host_memory_mb, parse_time_limit_s
from slurm_colloc.slurm.options import merge_options, parse_command_line, read_environment
from slurm_colloc.submission.jobs.directives import check_script, parse_directives


def pairs(script: str) -> list[tuple[str, str | None]]:
    givens = parse_directives(script.encode(), name="train.sh")
    return [(given.option.name, given.value) for given in givens]


def directive(text: str) -> list[tuple[str, str | None]]:
    return pairs(f"#!/bin/sh\n#SBATCH {text}\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("--hold", [("hold", None)]),
        ("-N1 -n 1 --time=5", [("nodes", "1"), ("ntasks", "1"), ("time", "5")]),
        ("--time=5 # five minutes", [("time", "5")]),
        ("--comment=a#b --hold", [("comment", "a")]),
        (r"--comment=a\#b", [("comment", "a#b")]),
        ('--comment="a # b"', [("comment", "a # b")]),
        ("-J 'my job'", [("job-name", "my job")]),
        ('--comment="it\'s"', [("comment", "it's")]),
        (r'--comment="a\"b"', [("comment", 'a"b')]),
        (r"--comment='a\'b'", [("comment", "a'b")]),
        (r"--comment=a\ b", [("comment", "a b")]),
        (r"--comment=a\\b", [("comment", r"a\b")]),
        ('--comment=a"b c"d', [("comment", "ab cd")]),
        ('--comment ""', [("comment", "")]),
        ('--comment=""', [("comment", "")]),
        ("-N1 \\", [("nodes", "1")]),
        ("\t--hold\t\v-O", [("hold", None), ("overcommit", None)]),
        ("--output=ü%j", [("output", "ü%j")]),
    ],
)
def test_a_line_is_split_by_the_rules_of_sbatch(
    text: str, expected: list[tuple[str, str | None]]
) -> None:
    assert directive(text) == expected


def test_lines_count_up_to_the_first_command() -> None:
    script = (
        "#!/bin/bash\n# comment\n\n  # indented\n#SBATCH -N1\n #SBATCH -n7\n##SBATCH -n8\n"
        "#SBATCH--hold\necho\n#SBATCH -O\n#CSUB --degree=2\n"
    )
    assert pairs(script) == [("nodes", "1"), ("hold", None)]


def test_a_value_may_stand_on_the_next_line() -> None:
    assert pairs("#!/bin/sh\n#SBATCH -t\n#CSUB --degree\n#SBATCH 5\n#CSUB 3\n") == [
        ("time", "5"),
        ("degree", "3"),
    ]


def test_the_old_mark_is_read_as_sbatch_reads_it() -> None:
    assert pairs("#!/bin/sh\n#SLURM -N1\n") == [("nodes", "1")]


def test_marks_of_other_systems_are_comments() -> None:
    assert pairs("#!/bin/sh\n#PBS -N x\n#BSUB -n 1\n#CSUBMIT --x\n") == []


def test_own_lines_win_over_sbatch_lines_wherever_they_stand() -> None:
    script = b"#!/bin/sh\n#CSUB --time=9 --gpu-mem=4G\n#SBATCH --time=5\n"
    options = merge_options(directives=parse_directives(script, name="train.sh"))
    assert options.text("time") == "9"
    assert options.origin("time") == "train.sh:2"
    assert options.text("gpu-mem") == "4G"


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (r"--progress-regex='step (\d+)'", r"step (\d+)"),
        (r'--progress-regex="step (\d+) \"x\" \\ \$"', r'step (\d+) "x" \ $'),
        (r"--progress-regex=step\ a\\b#c # rest", r"step a\b#c"),
        (r"--progress-regex 'it'\''s :' #", "it's :"),
        ("--progress-regex=''", ""),
    ],
)
def test_quotes_on_own_lines_are_those_of_a_shell(words: str, value: str) -> None:
    assert pairs(f"#!/bin/sh\n#CSUB {words}\n") == [("progress-regex", value)]


def test_a_long_line_with_an_open_quote_is_refused_at_once() -> None:
    with pytest.raises(UsageProblem, match="is never closed"):
        pairs(f"#!/bin/sh\n#CSUB --progress-regex={'a' * 5000}'\n")


def test_bytes_that_are_no_utf8_come_through() -> None:
    (comment,) = parse_directives(b"#!/bin/sh\n#SBATCH --comment=\xff\n", name="x")
    assert comment.value is not None
    assert comment.value.encode("utf-8", "surrogateescape") == b"\xff"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "#SBATCH --tiem=5",
            "train.sh:3: --tiem is not an sbatch option: did you mean --time?",
        ),
        ("#SBATCH --time", "train.sh:3: --time needs a value"),
        ("#SBATCH -N1 stray", "train.sh:3: 'stray' is not an option, and #SBATCH lines hold only"),
        ("#CSUB stray", "train.sh:3: 'stray' is not an option, and #CSUB lines hold only"),
        ("#SBATCH -J 'x", "train.sh:3: the quote ' is never closed"),
        ("#SBATCH -N1 :", "train.sh:3: there is an unexpected ':'"),
        ("#SBATCH hetjob", "train.sh:3: #SBATCH hetjob asks for a heterogeneous job"),
        ("#SBATCH PackJob x", "train.sh:3: #SBATCH PackJob asks for a heterogeneous job"),
        (
            "#SBATCH --degree=2",
            "train.sh:3: --degree is not an sbatch option: it is csub's own and belongs on a #CSUB",
        ),
        ("#CSUB --progress-regex='x", "train.sh:3: the quote ' is never closed"),
        ('#CSUB --progress-regex=a"x', 'train.sh:3: the quote " is never closed'),
        ("#CSUB --progress-regex=x\\", "train.sh:3: nothing follows the backslash"),
        ("#CSUB --degre", "train.sh:3: --degree needs a value"),
        ("#SBATCH --hold=1", "train.sh:3: --hold takes no value, but has '1'"),
    ],
)
def test_a_malformed_directive_names_file_and_line(line: str, message: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        pairs(f"#!/bin/sh\n\n{line}\nexit\n")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (b"", "train.sh: the batch script is empty"),
        (b" \n\t\n", "train.sh: the batch script holds only whitespace"),
        (b"echo\n", "train.sh: this does not look like a batch script"),
        (b"\n#!/bin/sh\n", "train.sh: this does not look like a batch script"),
        (b"\x7fELF\0\0", "train.sh: this does not look like a batch script"),
        (b"#!/bin/sh\necho \0\n", "train.sh:2: the batch script holds a NUL character"),
        (b"#!/bin/sh\necho\necho\r\n", "train.sh:3: the batch script has DOS line breaks"),
    ],
)
def test_what_sbatch_refuses_as_a_script_is_refused(script: bytes, message: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        check_script(script, name="train.sh")
    assert str(caught.value).startswith(message)


def test_an_ordinary_script_is_accepted() -> None:
    check_script(b"#!/bin/sh\necho 'a\rb'\n", name="train.sh")


@given(st.lists(st.text(alphabet="-=abNt1 \\\"'#:\t", max_size=10), max_size=4))
def test_no_directive_raises_anything_but_a_usage_problem(lines: list[str]) -> None:
    script = "#!/bin/sh\n" + "".join(f"#SBATCH {line}\n#CSUB {line}\n" for line in lines)
    try:
        pairs(script)
    except UsageProblem as problem:
        message = problem.message
        assert re.match(r"train\.sh:\d+: ", message)


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_but_a_usage_problem(script: bytes) -> None:
    for text in (script, b"#!/bin/sh\n#SBATCH " + script):
        try:
            check_script(text, name="x")
            givens = parse_directives(text, name="x")
        except UsageProblem as problem:
            message = problem.message
            assert message.startswith("x:")
        else:
            assert all(given.origin.startswith("x:") for given in givens)


@given(st.text(alphabet=st.characters(exclude_characters="\n\0", exclude_categories=["Cs"])))
def test_a_quoted_value_comes_through_whole(text: str) -> None:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    assert directive(f'--comment="{escaped}"') == [("comment", text)]


@dataclass(frozen=True)
class Case:
    """A submission that both parsers read."""

    script: str
    argv: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)


SHARED_CASES = {
    "quotes and comments": Case(
        "#SBATCH -J \"a b\" --comment=x\\#y # trailing -n3\n#SBATCH -A 'c d' --qos=e#f\n"
    ),
    "escapes": Case(
        "#SBATCH --comment=\"a\\\"b\" --qos='a\\'b' --wckey=a\\\\b -N1 \\\n#SBATCH -O\n"
    ),
    "value on the next line": Case("#SBATCH -t\n#SBATCH 1-2\n"),
    "comments between": Case("# x\n\n  # y\n #SBATCH -O\n##SBATCH -O\n#SBATCH--hold\n"),
    "after the first command": Case("#SBATCH -p a\necho\n#SBATCH -p b\n"),
    "old mark": Case("#SLURM -p a\n"),
    "ignored in scripts": Case("#SBATCH --wrap=x -vv --quiet\n"),
    "clusters of letters": Case("", ("-HOp", "x", "-Jname", "-Ok")),
    "shortened names": Case(
        "", ("--part=x", "--jo", "y", "--exclusi", "--lic=z", "--dep=singleton")
    ),
    "optional values": Case("#SBATCH --nice --exclusive=user\n", ("--nice=7",)),
    "precedence": Case(
        "#SBATCH -p script -A script -q script\n",
        ("-p", "line"),
        {"SBATCH_PARTITION": "variable", "SBATCH_ACCOUNT": "variable"},
    ),
    "flags taken back": Case("#SBATCH -O --use-min-nodes\n", (), {"SBATCH_OVERCOMMIT": "no"}),
    "flags by variable": Case(
        "", (), {"SBATCH_OVERCOMMIT": "", "SBATCH_USE_MIN_NODES": "yes", "SBATCH_SPREAD_JOB": "0"}
    ),
    "two variables": Case("", (), {"SLURM_CLUSTERS": "b", "SBATCH_TIMELIMIT": "90:90"}),
    "memory": Case("#SBATCH --mem-per-cpu=5G\n", (), {"SBATCH_MEM_PER_NODE": "1G"}),
    "arguments look like options": Case("", ("-c2", "--", "SCRIPT", "-n", "5")),
    "values that look like options": Case("", ("-J", "--hold")),
    **{f"time {text}": Case("", ("-t", text)) for text in ("90:90", "1:2:3", "1-", "1-2:3:4")},
    **{f"memory {text}": Case("", ("--mem", text)) for text in ("5MB", "1025k", "+5", "2T")},
    "spelling": Case("#SBATCH --tasks-per-node 1 --constraint=a&b\n"),
}


def ask_sbatch(case: Case, tmp_path: Path, configuration: Path) -> dict[str, str]:
    """What sbatch itself understands, from its verbose output; it then finds no controller."""
    script = tmp_path / "train.sh"
    script.write_text(f"#!/bin/sh\n{case.script}")
    argv = [str(script) if word == "SCRIPT" else word for word in case.argv]
    if "SCRIPT" not in case.argv:
        argv.append(str(script))
    answer = subprocess.run(
        ["sbatch", "--verbose", *argv],
        env={
            "PATH": "/usr/sbin:/usr/bin:/bin",
            "SLURM_CONF": str(configuration),
            **case.environment,
        },
        capture_output=True,
        text=True,
        check=False,
    ).stderr
    found = re.search(r"defined options\n.*?-+ -+\n(.*?)sbatch: -+ -+\n", answer, re.DOTALL)
    assert found is not None, answer
    lines = re.findall(r"^sbatch: ([\w-]+) +: (.*)$", found[1], re.MULTILINE)
    return {name: value for name, value in lines if name not in ("verbose", "quiet")}


@pytest.mark.slurm
@pytest.mark.parametrize("case", SHARED_CASES.values(), ids=SHARED_CASES)
def test_scripts_are_understood_as_sbatch_understands_them(
    case: Case, tmp_path: Path, client_configuration: Path
) -> None:
    theirs = ask_sbatch(case, tmp_path, client_configuration)
    options = merge_options(
        directives=parse_directives(f"#!/bin/sh\n{case.script}".encode(), name="train.sh"),
        environment=read_environment(case.environment),
        command_line=parse_command_line(case.argv).values,
    )
    ours = {given.option.name: given.value for given in options.givens}
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if name == "time":
            limit_s = parse_time_limit_s(value or "")
            assert limit_s is not None
            # sbatch asks for whole minutes.
            assert parse_time_limit_s(theirs[name]) == -(-limit_s // 60) * 60
        elif name.startswith("mem"):
            assert parse_host_memory_mb(theirs[name]) == parse_host_memory_mb(value or "")
        elif value is not None:
            assert theirs[name] == value
