"""The csub command.

A subcommand's name wins; anything else is the command line of a submission, `./queue` for a
script that is called like a subcommand.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Sequence

from slurm_colloc.errors import CollocError

SUBCOMMANDS = frozenset(
    {
        "calibrate", "cancel", "clean", "config", "doctor", "explain", "history", "hold", "logs",
        "profile", "queue", "release", "report", "requeue", "shell", "show", "top", "wait", "why",
    }
)  # fmt: skip
_ROOT_OPTIONS = frozenset({"--help", "-h", "--version", "-V"})


def choose_command(argv: Sequence[str]) -> Callable[[], int]:
    """The function that a command line means."""
    first = argv[0] if argv else ""
    if first == "sandbox":
        from slurm_colloc.sandbox.app import main as run_sandbox

        return lambda: run_sandbox(argv[1:])
    if first == "admin":
        from slurm_colloc.cli.admin import run_admin

        return lambda: run_admin(argv[1:])
    if not argv and sys.stdin is not None and sys.stdin.isatty():
        return lambda: _run_typer(["--help"])
    if len(argv) == 1 and first in ("--version", "-V"):
        # typer takes 100 ms to say it.
        return _tell_version
    if first in SUBCOMMANDS or first in _ROOT_OPTIONS:
        return lambda: _run_typer(argv)
    if first == "plan":
        from slurm_colloc.cli.planning import run_plan

        return lambda: run_plan(argv[1:])
    if first == "check":
        from slurm_colloc.cli.checking import run_check

        return lambda: run_check(argv[1:])
    from slurm_colloc.cli.submitting import run_submit

    is_pack, is_probe = first == "pack", first == "probe"
    words = argv[1:] if is_pack or is_probe or first == "submit" else argv
    return lambda: run_submit(words, pack=is_pack, probe=is_probe)


def _tell_version() -> int:
    from slurm_colloc import __version__

    sys.stdout.write(f"csub {__version__}\n")
    return 0


def _run_typer(argv: Sequence[str]) -> int:
    from slurm_colloc.cli.app import app

    status = app(args=list(argv), prog_name="csub", standalone_mode=False)
    return status if isinstance(status, int) else 0


def main() -> None:
    """Run csub; every problem is one sentence on standard error, and an exit status."""
    # A tenth of a submission would go into looking for garbage in what the imports made, and as
    # much again at the end; commands that run long still collect theirs.
    gc.set_threshold(100_000, 50, 100)
    status = run(sys.argv[1:])
    gc.freeze()
    sys.exit(status)


def run(argv: Sequence[str]) -> int:
    """Run one command line; the exit status."""
    try:
        status = choose_command(argv)()
        sys.stdout.flush()
    except CollocError as problem:
        sys.stderr.write(f"csub: error: {problem}\n")
        return problem.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("csub: interrupted\n")
        return 130
    except BrokenPipeError:
        # The reader has gone (`csub queue | head`); what Python would still flush goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except Exception as problem:
        click_exit = getattr(problem, "exit_code", None)
        shown = getattr(problem, "format_message", None)
        if click_exit is None or shown is None:
            raise
        sys.stderr.write(f"csub: error: {shown()}\n")
        return int(click_exit)
    return status


if __name__ == "__main__":
    main()
