"""What keeps a member's shims in reach of bash, whatever becomes of PATH; pure.

A login shell sets PATH anew (`#!/bin/bash -l` with Debian's /etc/profile), and so does
`module load` or the script itself. bash reads BASH_ENV after the login files and in every script
(bash(1), INVOCATION): there PATH is put back, and commands that are called by their path become
functions. Where the site's profile sets BASH_ENV itself, exported functions are left. srun and
salloc get none: `srun ... & kill $!` must find srun itself.

A job that `/usr/bin/sbatch` submits inherits all of it, and takes it back: it has another id.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from slurm_colloc.model.sbatch.export import iterate_set, speaks_of_a_member

_AS_FUNCTIONS = ("scancel", "scontrol", "squeue", "sbatch")
_FOLDERS = ("/usr/bin", "/bin", "/usr/local/bin")


def build_bash_variables(
    environment: Mapping[str, str], shims: str, bash_env: str
) -> dict[str, str]:
    """BASH_ENV, and functions in the form in which bash exports them.

    In the member's own job they never become Slurm's commands: that its shims cannot be seen is
    then a fault of the file system, and Slurm's scancel would end the whole pack.

    Args:
        environment: The member's; functions that the user has exported stay.
        shims: The directory of its shims.
        bash_env: The file that bash is to read.
    """
    variables = {"BASH_ENV": bash_env}
    job_id = environment.get("SLURM_JOB_ID")
    is_own = f'[ "${{SLURM_JOB_ID-}}" = {shlex.quote(job_id)} ] || ' if job_id else ""
    for name in _AS_FUNCTIONS:
        shim = shlex.quote(f"{shims}/{name}")
        body = f'if {is_own}[ -x {shim} ]; then {shim} "$@"; else command {name} "$@"; fi'
        if (variable := f"BASH_FUNC_{name}%%") not in environment:
            variables[variable] = f"() {{  {body}\n}}"
    return variables


def render_bash_env(
    environment: Mapping[str, str], job_id: str, shims: str, real: Sequence[str]
) -> str:
    """The text of a member's BASH_ENV.

    Args:
        environment: The member's, complete.
        job_id: Slurm's id of the pack, as its processes see it.
        shims: The directory of its shims.
        real: Paths of the real commands, as far as they are known.
    """
    paths = {*real, *(f"{folder}/{name}" for folder in _FOLDERS for name in _AS_FUNCTIONS)}
    by_path = [
        f'    function {path} {{ {shlex.quote(f"{shims}/{name}")} "$@"; }}'
        for path in sorted(paths)
        if (name := path.rpartition("/")[2]) in _AS_FUNCTIONS and shlex.quote(path) == path
    ]
    folders = sorted({path.rpartition("/")[0] for path in paths})
    behind = "|".join(f"*:{shlex.quote(folder)}:*" for folder in folders)
    is_own = (
        f'[ "${{SLURM_JOB_ID-}}" = {shlex.quote(job_id)} ]'
        ' || { [ -z "${SLURM_JOB_ID-}" ] && [ -d "$csub_shims" ]; }'
    )
    lines = [
        f"# Written by csub for member {environment['SLURM_COLLOC_MEMBER']}: each bash inside it",
        "# reads this. A job that it submits inherits the variable and takes everything back.",
        f"csub_shims={shlex.quote(shims)}",
        # In the own job a look that fails is one of the file system.
        f"if {is_own}; then",
        # Where no real command comes before them the order is left to the script, which may count
        # on what it has put first.
        f'    case ":$PATH:" in *":$csub_shims:"*) case ":${{PATH%%"$csub_shims"*}}" in {behind})',
        '        PATH=$csub_shims:${PATH//"$csub_shims:"/};; esac;;',
        "    *) PATH=$csub_shims:$PATH;; esac",
        *by_path,
        "else",
        '    PATH=${PATH//"$csub_shims:"/}',
        *_render_taking_back(environment),
        "fi",
        "unset csub_shims",
        *_render_users_own(environment),
    ]
    return "\n".join(lines) + "\n"


def _render_taking_back(environment: Mapping[str, str]) -> list[str]:
    lines = []
    for name, value, before in iterate_set(environment):
        function = name.removeprefix("BASH_FUNC_").removesuffix("%%")
        if function != name:
            lines.append(f"    unset -f {function}")
        elif before is None:
            lines.append(f'    [ "${{{name}-}}" != {shlex.quote(value)} ] || unset {name}')
        else:
            restore = f"{name}={shlex.quote(before)}"
            lines.append(f'    [ "${{{name}-}}" != {shlex.quote(value)} ] || {restore}')
    own = sorted(name for name in environment if speaks_of_a_member(name))
    return [*lines, f"    unset {' '.join(own)}"]


def _render_users_own(environment: Mapping[str, str]) -> list[str]:
    """The BASH_ENV that bash would have read; it expands the value (bash(1), BASH_ENV)."""
    before = {name: before for name, _, before in iterate_set(environment)}.get("BASH_ENV")
    if not before:
        return []
    assignment = f'csub_bash_env="{before}"'
    return [
        f"eval {shlex.quote(assignment)}",
        'if [ -r "$csub_bash_env" ]; then . "$csub_bash_env"; fi',
        "unset csub_bash_env",
    ]
