"""The csub command.

A subcommand's name wins; anything else is the command line of a submission, `./queue` for a
script that is called like a subcommand.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

# A user may press Ctrl-C while modules are loaded, too.
try:
    from slurm_colloc.cli.command_groups import OF_LAB
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
_TAKE_IDS = {
    "history": "queue_and_history", "queue": "queue_and_history",
    "report": "report_commands", "show": "queue_and_history",
    "why": "queue_and_history",
}  # fmt: skip
"""The modules of commands that look at what is named, without options at the rest."""
_READ_WORDS = {
    "admin": "admin_command", "check": "check_command", "plan": "plan_command",
}  # fmt: skip
"""Those of commands that read their own words; `run_` and its name is one's function."""
_SUBMIT_OTHERS = {
    "batch": "batch_and_sweep", "notebook": "notebook_command",
    "retry": "retry_command", "sweep": "batch_and_sweep",
}  # fmt: skip
"""Those of such commands that submit something else than scripts."""
_OF_SLURM = {
    "sacct": "tasks_listed", "sattach": "steps_of_tasks", "scancel": "tasks_changed",
    "scontrol": "tasks_changed", "squeue": "tasks_listed", "sstat": "steps_of_tasks",
}  # fmt: skip
"""Those of commands of Slurm's whose name csub may have."""
_LINE_BREAK = "\n"
_HELP = (["--help"], ["-h"])
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
    first = argv[0] if argv else ""
    if first in ("--complete-words", "--install-completion", "--show-completion"):
        from slurm_colloc.cli.complete import run_completion

        return lambda: run_completion(argv)
    if argv == ["--man"]:
        return _tell_manual
    if first in _SUBMIT_OTHERS:
        return _load(_SUBMIT_OTHERS[first], f"run_{first}", argv[1:])
    from slurm_colloc.cli.submit_command import run_submit

    is_pack, is_probe = first == "pack", first == "probe"
    words = argv[1:] if is_pack or is_probe or first == "submit" else argv
    return lambda: run_submit(words, pack=is_pack, probe=is_probe)


def _choose_by_own_name(argv: Sequence[str]) -> Callable[[], int] | None:
    """The function that is meant where csub has the name of a command of Slurm's; else None."""
    name = sys.argv[0].rpartition("/")[2]
    if name == "sbatch":
        return choose_sbatch_call(argv)
    return _load(_OF_SLURM[name], f"run_{name}", argv) if name in _OF_SLURM else None


def _choose_subcommand(argv: Sequence[str]) -> Callable[[], int] | None:
    """The same for all that is no submission; None for one."""
    first = argv[0] if argv else ""
    if first in OF_LAB:
        return lambda: _run_of_lab(first, argv[1:])
    if first in _READ_WORDS:
        return _load(_READ_WORDS[first], f"run_{first}", argv[1:])
    is_asked = list(argv) in _HELP
    if is_asked or (not argv and sys.stdin is not None and sys.stdin.isatty()):
        return _tell_help
    if len(argv) == 1 and first in ("--version", "-V"):
        # typer takes 100 ms to say it.
        return _tell_version
    if first in SUBCOMMANDS or first in _ROOT_OPTIONS:
        if first in _TAKE_IDS and not any(word.startswith("-") for word in argv):
            # Nothing as slow as typer is needed.
            return _load(_TAKE_IDS[first], first, list(argv[1:]) or None)
        return lambda: _run_typer(argv)
    return None


def _load(module: str, name: str, words: Sequence[str] | None) -> Callable[[], int]:
    """A command's function, loaded now, with its words; without a status it has succeeded."""
    function = getattr(import_module(f"slurm_colloc.cli.{module}"), name)
    return lambda: function(words) or 0


def _run_of_lab(name: str, words: Sequence[str]) -> int:
    from slurm_colloc.cli.command_groups import load_command

    return int(load_command(name)(words))


def _tell_help() -> int:
    from slurm_colloc.cli.command_groups import list_installed, render_help

    sys.stdout.write(render_help(list_installed()))
    return 0


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
        # A tenth of a submission would go into looking for garbage in what the imports made;
        # commands that run long still collect theirs.
        gc.set_threshold(100_000, 50, 100)
        guard_streams()
        status = run(sys.argv[1:])
        gc.freeze()
    except KeyboardInterrupt:
        status = _tell_interrupted()
    _leave(status)


def _leave(status: int) -> NoReturn:
    """End; at once where nothing is left to be done: taking down what was loaded takes long."""
    threading = sys.modules.get("threading")
    has_threads = threading is not None and threading.active_count() > 1
    if has_threads or atexit._ncallbacks():
        sys.exit(status)
    for stream in (sys.stdout, sys.stderr):
        # What an interrupt has left; what cannot be written was said, or has no reader.
        with contextlib.suppress(OSError, OutputFailed, ValueError):
            stream.flush()
    os._exit(status & 0xFF)


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
