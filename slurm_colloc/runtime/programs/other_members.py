"""What a member's program asks of other members: csub does it, under the name of Slurm's command.

Slurm does not know tasks of packs, and its scancel says nothing of ids that it does not know. So
all that is not about the own job goes to csub, as if the links of docs/members.md were there; what
is no member's csub passes on to Slurm.
"""

from __future__ import annotations

import os
import sys

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.sbatch.export import remove_member_variables
from slurm_colloc.runtime.programs.own_member import is_other_task
from slurm_colloc.settings_files import STATE_VARIABLE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slurm_colloc.runtime.programs.own_member import OwnMember

_PROGRAM = "import sys; sys.argv[0] = {!r}; from slurm_colloc.__main__ import main; main()"


def build_call(
    member: OwnMember, real: str, call: Sequence[str], environment: Mapping[str, str]
) -> tuple[str, list[str], dict[str, str]]:
    """What is to be executed for a command about other jobs: program, words and environment.

    Args:
        member: The caller.
        real: The path of Slurm's command.
        call: The command's name and arguments.
        environment: The environment.

    Raises:
        UsageProblem: It names a task, and csub cannot know it here.
    """
    name, *arguments = call
    root = member.pack.rsplit("/", 2)[0]
    # A pack that shares no path with the login node brings nothing but itself.
    if not os.path.isdir(f"{root}/jobs"):
        if others := [word for word in arguments if is_other_task(word, member)]:
            raise UsageProblem(
                f"{name}: {others[0]} cannot be reached from here: the pack of {member.name} "
                "shares no path with the login node",
                hint="nothing was done; call it there",
            )
        return real, list(call), dict(environment)
    words = [sys.executable, "-IBc", _PROGRAM.format(name), *arguments]
    return sys.executable, words, {**remove_member_variables(environment), STATE_VARIABLE: root}
