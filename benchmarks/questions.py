"""What squeue and scontrol cost inside a member, where csub's commands come first in PATH."""

from __future__ import annotations

import json

from benchmarks.bed import Bed, wait_until
from benchmarks.measuring import Figures, Section, Series

RUNS = 60
TASKS = 100
ADDED_TARGET_MS = 15.0

QUESTIONS = {
    "squeue": "squeue --jobs=JOB",
    "squeue, times": "squeue --me --noheader --format=%i,%L",
    "scontrol": "scontrol show job JOB",
}

# Runs in the member: the real command and the member's in turn, and which of them is first in turn.
PROGRAM = """
import json, os, shutil, subprocess, sys, time

runs, questions = json.loads(sys.argv[1])
folders = os.environ["PATH"].split(":")
found = {name: [] for name in questions}
for number in range(runs + 1):
    for name, text in questions.items():
        command, *words = text.replace("JOB", os.environ["SLURM_JOB_ID"]).split()
        ways = {
            "member": shutil.which(command),
            "real": shutil.which(command, path=":".join(folders[1:])),
        }
        took = {}
        for way in sorted(ways, reverse=bool(number % 2)):
            began = time.perf_counter()
            subprocess.run([ways[way], *words], check=True, stdout=subprocess.DEVNULL)
            took[way] = 1000 * (time.perf_counter() - began)
        if number:
            found[name].append((took["real"], took["member"]))
with open("measured.new", "w") as file:
    json.dump(found, file)
os.rename("measured.new", "measured.json")
"""


def _measure_link(bed: Bed, figures: Figures) -> None:
    """squeue with a row for each task, by a link to csub, and Slurm's own with one for the pack."""
    folder = bed.home / "links"
    folder.mkdir()
    link = folder / "squeue"
    link.symlink_to(bed.csub)
    words = ("--gres=gpu:1", "--mem=500M", "--time=10", "--no-probe", f"--array=1-{TASKS}")
    bed.run([bed.csub, "--hold", *words, str(bed.home / "asleep.sh")])
    question = ("-r", "-o", "%i %T")
    pairs = [
        (bed.time_ms(["squeue", *question]), bed.time_ms([str(link), *question]))
        for _ in range(RUNS // 2)
    ]
    for name, place in (("Slurm's own", 0), ("csub by a link", 1)):
        series = Series(tuple(pair[place] for pair in pairs))
        figures.add(f"squeue with {TASKS} tasks, {name}", series, "ms", command="squeue -r")


def measure_questions(bed: Bed) -> Section:
    """Ask from inside a pack of two, of which one sleeps."""
    (bed.home / "ask.py").write_text(PROGRAM)
    (bed.home / "questions.json").write_text(json.dumps([RUNS, QUESTIONS]))
    ask = bed.home / "ask.sh"
    ask.write_text('#!/bin/bash\nexec python3 ask.py "$(cat questions.json)"\n')
    asleep = bed.home / "asleep.sh"
    asleep.write_text("#!/bin/bash\nexec sleep 600\n")
    words = ("--gres=gpu:1", "--cpus-per-task=2", "--mem=500M", "--time=10", "--no-probe")
    bed.run([bed.csub, "pack", *words, str(asleep), str(ask)])
    answer = bed.home / "measured.json"
    wait_until(answer.exists, "the member has asked", patience_s=180)
    figures = Figures()
    for name, pairs in json.loads(answer.read_text()).items():
        real, member = (Series(tuple(pair[i] for pair in pairs)) for i in (0, 1))
        added = Series(tuple(pair[1] - pair[0] for pair in pairs))
        command = QUESTIONS[name].replace("JOB", "4711")
        figures.add(f"{name}, Slurm's own", real, "ms", command=command)
        figures.add(f"{name}, in a member", member, "ms", command=command)
        figures.add(f"{name}, added", added, "ms", target=ADDED_TARGET_MS)
    _measure_link(bed, figures)
    bed.cancel_all()
    return figures.build_section(
        "Questions from inside a member",
        ["Both in turn, in one member, next to one that sleeps; added: the differences of pairs."],
    )
