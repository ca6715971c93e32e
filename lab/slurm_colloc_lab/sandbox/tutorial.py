"""`csub tutorial`: five minutes with csub, on a private Slurm that goes away at the end."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_colloc.errors import CollocError, UsageProblem
from slurm_colloc_lab.sandbox.cluster import Sandbox
from slurm_colloc_lab.sandbox.sandbox_spec import SandboxSpec

HELP = """\
Usage: csub tutorial

Try csub for five minutes: this starts a private Slurm on this machine, shows and runs the main
commands, and removes everything at the end. On a terminal, press Enter to go on and q to quit.
"""

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=train --gres=gpu:1 --mem=300M --time=2
rate=0.${SLURM_ARRAY_TASK_ID:-$1}
echo "learning rate $rate"
sleep ${2:-4}
if [ "$rate" = 0.3 ]; then
    echo "ValueError: the loss is not a number" >&2
    exit 1
fi
echo "the loss is small"
"""


@dataclass(frozen=True)
class TutorialStep:
    """One command, with what there is to see in it.

    Attributes:
        text: What it does, before it runs.
        words: The command.
        status: The exit status that it is to have.
    """

    text: str
    words: tuple[str, ...]
    status: int = 0


STEPS = (
    TutorialStep("This is a training as you would give it to sbatch.", ("cat", "train.sh")),
    TutorialStep(
        "csub takes what sbatch takes. The four tasks of this array share a GPU: they are one "
        "Slurm job, with one place in its queue.",
        ("csub", "--array=1-4", "train.sh"),
    ),
    TutorialStep(
        "Such a Slurm job is a pack. Each task is one of its members, and has its own name.",
        ("csub", "queue"),
    ),
    TutorialStep(
        "One of them fails. wait returns when all have ended, with the exit status of the worst.",
        ("csub", "wait", "last"),
        1,
    ),
    TutorialStep("Why, in one line.", ("csub", "why", "last/3")),
    TutorialStep("The others went on. This is what one of them wrote:", ("csub", "logs", "last/1")),
    TutorialStep(
        "Now a long job, alone. It keeps the only GPU busy.", ("csub", "train.sh", "5", "90")
    ),
    TutorialStep("The next job has to wait ...", ("csub", "--join", "train.sh", "6")),
    TutorialStep(
        "... and one that comes meanwhile joins it, because there is room, whatever its "
        "arguments. It has a number of its own, though both are one Slurm job. Jobs that you type "
        "at a terminal do so without --join.",
        ("csub", "--join", "train.sh", "7"),
    ),
    TutorialStep("Every command knows it by that number.", ("csub", "queue")),
    TutorialStep("This is what it waits for:", ("csub", "why", "last")),
    TutorialStep(
        "Members are cancelled like jobs, one by one or all together.",
        ("csub", "cancel", "--yes", "all"),
    ),
    TutorialStep("What has run, and how it ended:", ("csub", "history")),
)

END = """\
That is all. On a real cluster, csub doctor says whether csub works there, csub check train.sh
whether a script is ready to share, csub plan what would share, and csub report what was gained.
"""


def run_tutorial(argv: Sequence[str]) -> int:
    """Run the tutorial; the exit status.

    Raises:
        CollocError: There is no Slurm to start, or a command did not do what it should.
    """
    if any(word in ("-h", "--help") for word in argv):
        sys.stdout.write(HELP)
        return 0
    if argv:
        raise UsageProblem(f"csub tutorial takes no {argv[0]!r}", hint="csub tutorial --help")
    folder = Path(tempfile.mkdtemp(prefix="cst", dir="/var/tmp"))
    sandbox = Sandbox(folder / "c")
    try:
        sys.stdout.write(
            "Starting a private Slurm. It touches no other one, and is removed at the end.\n"
        )
        sys.stdout.flush()
        sandbox.up(
            SandboxSpec(sandbox.directory, nodes=1, gpus_per_node=1, fake_gpus=True, simgpu=False)
        )
        home = folder / "home"
        home.mkdir()
        (home / "train.sh").write_text(SCRIPT)
        environment = _build_environment(home, sandbox)
        for step in STEPS:
            if not _go_on():
                return 0
            _run_step(step, home, environment)
        sys.stdout.write(f"\n{END}")
        return 0
    finally:
        sandbox.down(purge=True)
        shutil.rmtree(folder, ignore_errors=True)


def _build_environment(home: Path, sandbox: Sandbox) -> dict[str, str]:
    base = {**os.environ, "XDG_STATE_HOME": str(home / "state")}
    return {**base, **sandbox.env(base)}


def _go_on() -> bool:
    if sys.stdin is None or not sys.stdin.isatty() or not sys.stdout.isatty():
        return True
    sys.stdout.write("\n[Enter] ")
    sys.stdout.flush()
    answer = sys.stdin.readline()
    return bool(answer) and answer.strip().lower() != "q"


def _run_step(step: TutorialStep, home: Path, environment: Mapping[str, str]) -> None:
    sys.stdout.write(f"\n{step.text}\n$ {shlex.join(step.words)}\n")
    sys.stdout.flush()
    words = list(step.words)
    if words[0] == "csub":
        # This very csub, whatever PATH has.
        words[:1] = [sys.executable, "-m", "slurm_colloc"]
    # posix_spawn has no working directory.
    argv = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(home), *words]
    pid = os.posix_spawn(argv[0], argv, dict(environment))
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != step.status:
        raise CollocError(
            f"{shlex.join(step.words)} has ended with exit status {status}, not {step.status}",
            hint="csub doctor says what may be wrong here",
        )
