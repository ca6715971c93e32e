"""Options that mean something to one of csub's commands, refused where another is called."""

from __future__ import annotations

from slurm_colloc.errors import UsageProblem
from slurm_colloc.slurm.options import Options

_OF_ONE_COMMAND = {
    "zip": "sweep", "sample": "sweep", "from": "sweep",
    "resume": "batch", "watch": "batch",
}  # fmt: skip


def refuse_options_of_others(options: Options, command: str, *, also: str = "") -> None:
    """Refuse options that mean something to another of csub's commands alone.

    Args:
        options: The options of the call.
        command: The command.
        also: Another whose options it takes; empty for none.

    Raises:
        UsageProblem: One was given.
    """
    if "plan" not in (command, also) and options.flag("what-if"):
        raise UsageProblem(
            f"{options.origin('what-if')}: --what-if submits nothing",
            hint="csub plan --what-if=... shows it",
        )
    for name, its_command in _OF_ONE_COMMAND.items():
        if its_command not in (command, also) and options.flag(name):
            raise UsageProblem(
                f"{options.origin(name)}: --{name} is an option of csub {its_command} alone",
                hint=f"csub {its_command} --help",
            )
