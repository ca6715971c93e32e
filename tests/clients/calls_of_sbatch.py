"""Calls of sbatch as batch scripts and their authors write them: name, lines, files."""

from __future__ import annotations

from dataclasses import dataclass, field

HEAD = "#!/bin/bash\n#SBATCH --gres=gpu:1 --mem=200M --time=5\n"


@dataclass(frozen=True)
class SbatchCall:
    """One script and how it is submitted.

    Attributes:
        lines: What is run in bash, in a directory of its own.
        files: What lies there; text that begins without `#!` gets HEAD before it.
        says: A line of some output file, so that a script that does nothing is noticed.
        states: Of all tasks, sorted; empty where nothing is submitted.
    """

    lines: str
    files: dict[str, str] = field(default_factory=dict)
    says: str = ""
    states: tuple[str, ...] = ("COMPLETED",)


DONE, FAILED = "COMPLETED", "FAILED"
TWO = {"a.sh": "echo first | tee seen; sleep 1\n", "b.sh": "cat seen\necho second\n"}

CALLS = {
    "plain": SbatchCall("sbatch a.sh", {"a.sh": "echo hello\n"}, "hello"),
    "exit code": SbatchCall("sbatch a.sh", {"a.sh": "echo a\nexit 3\n"}, "a", (FAILED,)),
    "set -e": SbatchCall(
        "sbatch a.sh", {"a.sh": "set -euo pipefail\necho a\nfalse\necho b\n"}, "a", (FAILED,)
    ),
    "a signal": SbatchCall("sbatch a.sh", {"a.sh": "echo a\nkill -9 $$\n"}, "a", (FAILED,)),
    "python": SbatchCall(
        "sbatch a.py one 'two words'",
        {
            "a.py": "#!/usr/bin/env python3\n#SBATCH --gres=gpu:1 --mem=200M -t 5\n"
            "import sys\nprint(sys.argv[1:])\n"
        },
        "['one', 'two words']",
    ),
    "here-document": SbatchCall(
        "sbatch <<'EOF'\n#!/bin/bash\n#SBATCH --gres=gpu:1 --mem=200M\n"
        "#SBATCH -J here\necho $SLURM_JOB_NAME\nEOF",
        says="here",
    ),
    "standard input": SbatchCall("cat a.sh | sbatch -J piped", {"a.sh": "echo in\n"}, "in"),
    "wrap": SbatchCall(
        "sbatch --gres=gpu:1 --mem=200M --wrap='echo \"$PWD\" | tr -d / | wc -l'", says="1"
    ),
    "array with a limit": SbatchCall(
        "sbatch --array=0-3%2 -o %A_%a.txt a.sh",
        {"a.sh": "echo $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT\n"},
        "3 of 4",
        (DONE,) * 4,
    ),
    "array with steps": SbatchCall(
        "sbatch -a 1-5:2 a.sh",
        {"a.sh": "echo $SLURM_ARRAY_TASK_MAX $SLURM_ARRAY_TASK_STEP\nexit $SLURM_ARRAY_TASK_ID\n"},
        "5 2",
        (FAILED,) * 3,
    ),
    "names of output files": SbatchCall(
        "mkdir logs\nsbatch -J 'my job' -o logs/%j-%x-%u.out -e 'logs/%x %N.err' a.sh",
        {"a.sh": "echo out\necho err >&2\n"},
        "err",
    ),
    "padding": SbatchCall("sbatch -o 'x%8j%%.out' a.sh", {"a.sh": "echo out\n"}, "out"),
    "open mode": SbatchCall(
        "echo old >log\nsbatch --open-mode=append -o log a.sh", {"a.sh": "echo new\n"}, "old"
    ),
    "truncated": SbatchCall(
        "echo old >log\nsbatch --open-mode=truncate -o log a.sh", {"a.sh": "echo new\n"}, "new"
    ),
    "no output": SbatchCall("sbatch -o /dev/null a.sh", {"a.sh": "echo new | tee seen\n"}, "new"),
    "chdir": SbatchCall(
        "mkdir sub\nsbatch --chdir=sub a.sh", {"a.sh": "basename $PWD; touch here\n"}, "sub"
    ),
    "export NONE": SbatchCall(
        "export MINE=1\nsbatch --export=NONE a.sh", {"a.sh": "echo [${MINE:-none}]\n"}, "[none]"
    ),
    "export values": SbatchCall(
        "export MINE=1 OTHER=2\nsbatch --export=MINE,NEW='a b' a.sh",
        {"a.sh": "echo [$MINE][${OTHER:-none}][$NEW]\n"},
        "[1][none][a b]",
    ),
    "export ALL": SbatchCall(
        "export MINE='é \"'\nsbatch --export=ALL,NEW=n a.sh",
        {"a.sh": "echo [$MINE][$NEW]\n"},
        '[é "][n]',
    ),
    "variables for sbatch": SbatchCall(
        "SBATCH_JOB_NAME=fromenv sbatch a.sh", {"a.sh": "echo $SLURM_JOB_NAME\n"}, "fromenv"
    ),
    "mail": SbatchCall(
        "sbatch --mail-type=END,FAIL --mail-user=one@example.org a.sh",
        {"a.sh": "echo m\n"},
        "m",
    ),
    "begin": SbatchCall("sbatch --begin=now+2 a.sh", {"a.sh": "echo later\n"}, "later"),
    "comment and nice": SbatchCall(
        "sbatch --comment='a b' --nice=10 a.sh", {"a.sh": "echo nice\n"}, "nice"
    ),
    "quiet": SbatchCall("sbatch -Q -J quiet a.sh", {"a.sh": "echo q\n"}, "q"),
    "wait": SbatchCall("sbatch --wait a.sh", {"a.sh": "exit 4\n"}, "", (FAILED,)),
    "afterok": SbatchCall(
        "id=$(sbatch --parsable a.sh)\nsbatch -d afterok:$id b.sh", TWO, "second", (DONE, DONE)
    ),
    "afterany": SbatchCall(
        "id=$(sbatch --parsable a.sh)\nsbatch --dependency=afterany:$id b.sh",
        {**TWO, "a.sh": "echo first | tee seen\nexit 1\n"},
        "second",
        (DONE, FAILED),
    ),
    "afternotok": SbatchCall(
        "id=$(sbatch --parsable a.sh)\nsbatch -d afternotok:$id b.sh",
        {**TWO, "a.sh": "echo first | tee seen\nexit 1\n"},
        "second",
        (DONE, FAILED),
    ),
    "afterok of an array": SbatchCall(
        "id=$(sbatch --parsable --array=1-3 a.sh)\nsbatch -d afterok:$id b.sh",
        {
            "a.sh": "echo first >done.$SLURM_ARRAY_TASK_ID; sleep 1\n",
            "b.sh": "cat done.*\necho second\n",
        },
        "second",
        (DONE,) * 4,
    ),
    "aftercorr": SbatchCall(
        "id=$(sbatch --parsable --array=1-3 a.sh)\nsbatch -d aftercorr:$id --array=1-3 b.sh",
        {"a.sh": "echo a >done.$SLURM_ARRAY_TASK_ID\n", "b.sh": "cat done.$SLURM_ARRAY_TASK_ID\n"},
        "a",
        (DONE,) * 6,
    ),
    "singleton": SbatchCall(
        "sbatch -J one -o 1.out a.sh 1\nsbatch -J one -d singleton -o 2.out a.sh 2",
        {"a.sh": "echo $1 >>order\nsleep 1\n"},
        "2",
        (DONE, DONE),
    ),
    "steps": SbatchCall(
        "sbatch -n1 a.sh",
        {"a.sh": "srun -n1 echo step $SLURM_NTASKS\nsrun -n1 false || echo status $?\n"},
        "status 1",
    ),
    "a job that submits": SbatchCall(
        "sbatch a.sh",
        {"a.sh": "sbatch --parsable -o inner.out b.sh | wc -w\n", "b.sh": "echo inner\n"},
        "inner",
        (DONE, DONE),
    ),
    "requeue": SbatchCall(
        "sbatch --requeue --open-mode=append a.sh",
        {
            "a.sh": "echo restart ${SLURM_RESTART_COUNT:-none}\n"
            '[ -n "${SLURM_RESTART_COUNT:-}" ] || { scontrol requeue $SLURM_JOB_ID; sleep 30; }\n'
        },
        "restart 1",
    ),
    "a signal before the limit": SbatchCall(
        "sbatch --signal=B:USR1@50 --time=1 a.sh",
        {"a.sh": "trap 'echo caught; exit 0' USR1\nsleep 70 &\nwait\n"},
        "caught",
    ),
    "arguments": SbatchCall(
        "sbatch a.sh -x 'two words' '' 'é*' --array=1-2",
        {"a.sh": "printf '<%s>' \"$@\"; echo\n"},
        "<-x><two words><><é*><--array=1-2>",
    ),
    "a name that is not ASCII": SbatchCall(
        "sbatch -J 'Grüße 世界' -o %x.out a.sh", {"a.sh": "echo $SLURM_JOB_NAME\n"}, "Grüße 世界"
    ),
    "modules": SbatchCall(
        "sbatch a.sh",
        {
            "a.sh": "if [ -e /etc/profile.d/modules.sh ]; then . /etc/profile.d/modules.sh\n"
            "module use $PWD; module load tool; fi\necho tool ${TOOL:-here}\n",
            "tool": "#%Module1.0\nsetenv TOOL here\n",
        },
        "tool here",
    ),
    "a login shell": SbatchCall(
        "sbatch a.sh",
        {"a.sh": "#!/bin/bash -l\n#SBATCH --gres=gpu:1 --mem=200M -t 5\necho in $0 | wc -w\n"},
        "2",
    ),
    "Windows line ends": SbatchCall(
        "sbatch a.sh", {"a.sh": "#!/bin/bash\r\n#SBATCH --mem=200M\r\necho a\r\n"}, states=()
    ),
    "no first line": SbatchCall("sbatch bare", {"bare": "raw:echo a\n"}, states=()),
    "an empty script": SbatchCall("sbatch bare", {"bare": "raw:"}, states=()),
    "no such script": SbatchCall("sbatch gone.sh", states=()),
    "a directory": SbatchCall("sbatch .", states=()),
    "a wrong option": SbatchCall("sbatch --no-such-option a.sh", {"a.sh": "true\n"}, states=()),
    "a wrong time": SbatchCall("sbatch --time=soon a.sh", {"a.sh": "true\n"}, states=()),
    "a wrong directive": SbatchCall(
        "sbatch a.sh", {"a.sh": "#!/bin/bash\n#SBATCH --nodes=many\ntrue\n"}, states=()
    ),
}
