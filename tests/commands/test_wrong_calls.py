"""Wrong calls: csub says exactly one sentence, and has changed nothing."""

from __future__ import annotations

import pytest

from ..bed import CsubUser
from .refusals import check_refused

PACK = ("pack", "--gres=gpu:1", "-c1", "--mem=100M", "--time=5")

TIMES = "write minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS, or UNLIMITED"

COMMAND_LINES = {
    "malformed gres": (
        ("--gres=gpu:a:b:c", "ok.sh"),
        2,
        (
            "the command line: --gres=gpu:a:b:c: --gres=gpu:a:b:c: 'c' is not a number of GPUs: "
            "write for example gpu:1"
        ),
    ),
    "more GPU memory than stated is no size": (
        ("--gpu-mem=lots", "ok.sh"),
        2,
        (
            "the command line: --gpu-mem=lots: 'lots' is not a GPU memory size: write a number and "
            "its unit, as in 20G or 800M"
        ),
    ),
    "missing script": (
        ("missing.sh",),
        2,
        "cannot read the script missing.sh: No such file or directory: is it in this directory?",
    ),
    "one missing script of a pack": (
        (*PACK, "ok.sh", "missing.sh"),
        2,
        "cannot read the script missing.sh: No such file or directory: is it in this directory?",
    ),
    "directory as script": (("folder",), 2, "cannot read the script folder: Is a directory"),
    "directory as output": (
        ("--output=folder", "ok.sh"),
        2,
        (
            "the command line: --output=folder is a directory, and a file is needed: "
            "--output=folder/%x-%a.out names one in it"
        ),
    ),
    "empty script": (("empty.sh",), 2, "empty.sh: the batch script is empty"),
    "no interpreter line": (
        ("plain.sh",),
        2,
        (
            "plain.sh: this does not look like a batch script, for its first line does not begin "
            "with #! and the path of an interpreter: begin it with #!/bin/bash, for example, or "
            "give a command with --wrap"
        ),
    ),
    "DOS line ends": (
        ("dos.sh",),
        2,
        (
            "dos.sh:1: the batch script has DOS line breaks: convert it, for example with: "
            "sed -i 's/\\r$//' dos.sh"
        ),
    ),
    "malformed value in a directive": (
        ("bad_time.sh",),
        2,
        f"bad_time.sh:3: --time=abc: 'abc' is not a time limit: {TIMES}",
    ),
    "unknown directive": (
        ("bad_name.sh",),
        2,
        "bad_name.sh:2: --tiem is not an sbatch option: did you mean --time?",
    ),
    "open quote in a directive": (
        ("bad_quote.sh",),
        2,
        "bad_quote.sh:2: the quote ' is never closed: close it on the same line",
    ),
    "heterogeneous job": (
        ("het.sh",),
        2,
        (
            "het.sh:2: #SBATCH hetjob asks for a heterogeneous job, which cannot be packed: submit "
            "it with sbatch"
        ),
    ),
    "heterogeneous job on the command line": (
        ("-n1", ":", "-n1", "ok.sh"),
        2,
        (
            "a ':' between options asks for a heterogeneous job, which cannot be packed: submit it "
            "with sbatch"
        ),
    ),
    "empty array": (
        ("--array=", "ok.sh"),
        2,
        "the command line: --array=: array '' names no task: write numbers or ranges, as in 0-7",
    ),
    "array backwards": (
        ("--array=5-1", "ok.sh"),
        2,
        "the command line: --array=5-1: array '5-1': the range 5-1 runs backwards",
    ),
    "time": (
        ("--time=1:2:3:4", "ok.sh"),
        2,
        f"the command line: --time=1:2:3:4: '1:2:3:4' is not a time limit: {TIMES}",
    ),
    "host memory": (
        ("--mem=12Q", "ok.sh"),
        2,
        (
            "the command line: --mem=12Q: '12Q' is not a host memory size: write a whole number "
            "and K, M, G or T, as in 16G"
        ),
    ),
    "signal": (
        ("--signal=NOPE@1", "ok.sh"),
        2,
        (
            "the command line: --signal=NOPE@1: there is no signal 'NOPE'"
            ": write 1 to 64, HUP, INT, QUIT, ABRT, KILL, ALRM, TERM, USR1, USR2, URG, CONT, STOP, "
            "TSTP, TTIN, TTOU, XCPU"
        ),
    ),
    "degree": (
        ("--degree=0", "ok.sh"),
        2,
        "the command line: --degree=0: a number of at least 1 is needed",
    ),
    "unknown option": (
        ("--gers=gpu:1", "ok.sh"),
        2,
        "--gers is not an sbatch or csub option: did you mean --gres?",
    ),
    "uid": (
        ("--uid=0", "ok.sh"),
        2,
        (
            "the command line: csub does not support --uid: a pack belongs to the user and group "
            "that call csub: submit it with sbatch"
        ),
    ),
    "clusters": (
        ("--clusters=other", "ok.sh"),
        2,
        (
            "the command line: csub does not support --clusters: csub follows the jobs of one "
            "cluster only: submit it with sbatch"
        ),
    ),
    "no such member": (
        ("show", "4711:3"),
        2,
        (
            "'4711:3' names neither a pack nor a member: write 4711 for all members of a "
            "submission, 4711/3 or 4711/2-5 for some, last for the newest submission, or all"
        ),
    ),
}


@pytest.mark.parametrize("case", COMMAND_LINES, ids=lambda case: case.replace(" ", "-"))
def test_a_wrong_call_is_refused_in_one_sentence(scripts: CsubUser, case: str) -> None:
    words, status, sentence = COMMAND_LINES[case]
    check_refused(scripts, words, status, sentence)
