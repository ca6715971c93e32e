"""One of Slurm's commands inside a member. Who: the user's script; where: compute node.

    shim.py SHIM ARGUMENTS...

SHIM is the path by which it was called. Started by path, without site packages, because squeue
may not become noticeably slower; what it needs is imported from modules that are compiled.
"""

import os
import sys

if __name__ == "__main__":
    # The package lies four directories up; -I keeps even this file's own off the path.
    sys.path.insert(0, __file__.rsplit(os.sep, 4)[0])
    from slurm_colloc.process_name import name_process

    name_process("csub-command")
    from slurm_colloc.runtime.programs.member_commands import main

    status = main(sys.argv[1], sys.argv[2:])
    # The interpreter would take a while over its end, at which nothing is left to be done: what is
    # not written at once goes to standard error, line by line.
    os._exit(status)
