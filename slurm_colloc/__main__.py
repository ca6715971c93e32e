"""The csub command.

A subcommand's name wins; anything else is the command line of a submission, `./queue` for a
script that is called like a subcommand.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Sequence

# A user may press Ctrl-C while modules are loaded, too.
try:
    from slurm_colloc.cli.sbatch_call import choose_sbatch_call, hand_over, is_led_back
    from slurm_colloc.errors import CollocError
    from slurm_colloc.model.printable import escape_controls
    from slurm_colloc.session.standard_streams import OutputFailed, drop_output, guard_streams
except KeyboardInterrupt:
    sys.stderr.write("csub: interrupted\n")
    sys.exit(130)

SUBCOMMANDS = frozenset(
    {
        "cancel", "clean", "compare", "config", "doctor", "explain", "history", "hold",
        "logs", "profile", "queue", "release", "report", "requeue", "shell", "show", "top", "track",
        "wait", "why",
    }
)  # fmt: skip
# slurm_colloc.extensions finds them.
_OF_LAB = frozenset({"calibrate", "sandbox", "tutorial"})
_LINE_BREAK = "\n"
_ROOT_OPTIONS = frozenset({"--help", "-h", "--version", "-V"})


def choose_command(argv: Sequence[str]) -> Callable[[], int]:
    """The function that a command line means."""
    named = _choose_by_own_name(argv)
    if named is not None:
        return named
    command = _choose_subcommand(argv)
    if command is not None:
        return command
    if is_led_back():
        return lambda: hand_over(argv)
    of_many = _choose_submission_of_many(argv)
    if of_many is not None:
        return of_many
    first = argv[0] if argv else ""
    if first == "notebook":
        from slurm_colloc.cli.notebook_command import run_notebook

        return lambda: run_notebook(argv[1:])
    from slurm_colloc.cli.submit_command import run_submit

    is_pack, is_probe = first == "pack", first == "probe"
    words = argv[1:] if is_pack or is_probe or first == "submit" else argv
    return lambda: run_submit(words, pack=is_pack, probe=is_probe)


def _choose_by_own_name(argv: Sequence[str]) -> Callable[[], int] | None:
    """The function that is meant where csub has the name of a command of Slurm's; else None."""
    name = sys.argv[0].rpartition("/")[2]
    if name == "sbatch":
        return choose_sbatch_call(argv)
    if name == "scancel":
        from slurm_colloc.cli.tasks_changed import run_scancel

        return lambda: run_scancel(argv)
    if name == "scontrol":
        from slurm_colloc.cli.tasks_changed import run_scontrol

        return lambda: run_scontrol(argv)
    if name == "squeue":
        from slurm_colloc.cli.tasks_listed import run_squeue

        return lambda: run_squeue(argv)
    if name == "sacct":
        from slurm_colloc.cli.tasks_listed import run_sacct

        return lambda: run_sacct(argv)
    return None


def _choose_subcommand(argv: Sequence[str]) -> Callable[[], int] | None:
    """The same for all that is no submission; None for one."""
    first = argv[0] if argv else ""
    if first in _OF_LAB:
        return lambda: _run_of_lab(first, argv[1:])
    if first == "admin":
        from slurm_colloc.cli.admin_command import run_admin

        return lambda: run_admin(argv[1:])
    if not argv and sys.stdin is not None and sys.stdin.isatty():
        return lambda: _run_typer(["--help"])
    if len(argv) == 1 and first in ("--version", "-V"):
        # typer takes 100 ms to say it.
        return _tell_version
    if first in SUBCOMMANDS or first in _ROOT_OPTIONS:
        return lambda: _run_typer(argv)
    if first == "plan":
        from slurm_colloc.cli.plan_command import run_plan

        return lambda: run_plan(argv[1:])
    if first == "check":
        from slurm_colloc.cli.check_command import run_check

        return lambda: run_check(argv[1:])
    return None


def _choose_submission_of_many(argv: Sequence[str]) -> Callable[[], int] | None:
    """The commands that submit what a table or earlier jobs say, and completion; else None."""
    first = argv[0] if argv else ""
    if first in ("--complete-words", "--install-completion", "--show-completion"):
        from slurm_colloc.cli.complete import run_completion

        return lambda: run_completion(argv)
    if argv == ["--man"]:
        return _tell_manual
    if first == "sweep":
        from slurm_colloc.cli.batch_and_sweep import run_sweep

        return lambda: run_sweep(argv[1:])
    if first == "batch":
        from slurm_colloc.cli.batch_and_sweep import run_batch

        return lambda: run_batch(argv[1:])
    if first == "retry":
        from slurm_colloc.cli.retry_command import run_retry

        return lambda: run_retry(argv[1:])
    return None


def _run_of_lab(name: str, words: Sequence[str]) -> int:
    from slurm_colloc.extensions import COMMANDS, load_extension

    return int(load_extension(COMMANDS, name, f"csub {name}")(words))


def _tell_version() -> int:
    from slurm_colloc import __version__

    sys.stdout.write(f"csub {__version__}\n")
    return 0


def _tell_manual() -> int:
    from slurm_colloc.cli.man_page import render_man

    sys.stdout.write(render_man())
    return 0


def _run_typer(argv: Sequence[str]) -> int:
    from slurm_colloc.cli.subcommands import build_app

    app = build_app(argv[0] if argv[0] in SUBCOMMANDS else "")
    status = app(args=list(argv), prog_name="csub", standalone_mode=False)
    return status if isinstance(status, int) else 0


def main() -> None:
    """Run csub; every problem is one sentence on standard error, and an exit status."""
    try:
        # A tenth of a submission would go into looking for garbage in what the imports made, and
        # as much again at the end; commands that run long still collect theirs.
        gc.set_threshold(100_000, 50, 100)
        guard_streams()
        status = run(sys.argv[1:])
        gc.freeze()
    except KeyboardInterrupt:
        status = _tell_interrupted()
    sys.exit(status)


def run(argv: Sequence[str]) -> int:
    """Run one command line; the exit status."""
    status = 0
    try:
        status = _run_command(argv)
        sys.stdout.flush()
    except OutputFailed as problem:
        drop_output()
        if problem.is_reader_gone:
            return status
        sys.stderr.write(f"csub: {escape_controls(str(problem))}\n")
        if problem.lost_line:
            sys.stderr.write(f"csub: not written: {problem.lost_line}\n")
        return status or 1
    return status


def _run_command(argv: Sequence[str]) -> int:
    try:
        return choose_command(argv)()
    except CollocError as problem:
        _tell(str(problem))
        return problem.exit_code
    except KeyboardInterrupt:
        return _tell_interrupted()
    except SystemExit as end:
        # argparse ends so, after what it has to say.
        if end.code is not None and not isinstance(end.code, int):
            raise
        return end.code or 0
    except OutputFailed:
        raise
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        _tell(f"{where}{problem.strerror or problem}")
        return 1
    except Exception as problem:
        click_exit = getattr(problem, "exit_code", None)
        shown = getattr(problem, "format_message", None)
        if click_exit is None or shown is None:
            raise
        # click puts its choices on lines of their own; the names in it are the caller's.
        _tell(shown(), keep=_LINE_BREAK)
        return int(click_exit)


def _tell_interrupted() -> int:
    sys.stderr.write("csub: interrupted\n")
    return 130


def _tell(text: str, keep: str = "") -> None:
    # It may hold anything that a user, a file or Slurm has written.
    sys.stderr.write(f"csub: error: {escape_controls(text, keep=keep)}\n")


if __name__ == "__main__":
    main()
