"""`csub notebook [options]`: a Jupyter server as a member, which ends when it is no longer used."""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slurm_colloc.errors import MemberFailed, UsageProblem
from slurm_colloc.model.member import Selection
from slurm_colloc.session.session import Session, note, say
from slurm_colloc.settings import read_given_environment

if TYPE_CHECKING:
    from slurm_colloc.report.member_views import MemberView, PackView

IDLE_MIN = 30
PORT = 8888
LOOK_S = 0.5

HELP = f"""\
Usage: csub notebook [--idle=MINUTES] [--port=PORT] [OPTIONS]

Start a Jupyter server as a member that shares a GPU with others, and say how to reach it.
OPTIONS are those of csub and sbatch, such as --gres=gpu:1 --time=4:00:00. The members that share
its GPU make way for it (--priority=fast), unless another --priority is given.

  --idle=MINUTES   Kernels that have been idle for this long are ended, and the server after the
                   last one ({IDLE_MIN}; 0 for never). A kernel that computes is not idle.
  --port=PORT      The first port to try on the node ({PORT}).

csub runs the `jupyter` in the PATH of this call.
"""

# Its node may have several; the first free port from here on is taken.
_SERVER = """\
for kind in lab notebook server; do
    jupyter $kind --version >/dev/null 2>&1 || continue
    exec jupyter $kind --no-browser --ip="$(hostname)" --port={port} --ServerApp.port_retries=200 \\
        --ServerApp.allow_remote_access=True \\
        --ServerApp.shutdown_no_activity_timeout={idle_s} \\
        --MappingKernelManager.cull_idle_timeout={idle_s} \\
        --MappingKernelManager.cull_connected=True --MappingKernelManager.cull_interval={look_s}
done
echo 'csub notebook: PATH has no jupyter: pip install jupyterlab' >&2
exit 127"""
_NOT_HERE = ("dry-run", "test-only", "json", "parsable", "quiet", "wait", "what-if")
_ADDRESS = re.compile(r"\bhttps?://([A-Za-z0-9.-]+):(\d{1,5})/")


def run_notebook(argv: Sequence[str]) -> int:
    """Submit a server and wait until it can be reached; the exit status.

    Raises:
        MemberFailed: It has ended before it could be reached.
        UsageProblem: The call is wrong.
    """
    from slurm_colloc.cli.submit_command import refuse_options_of_others
    from slurm_colloc.session.place_call import choose_packs_to_join, place_call, prepare_call
    from slurm_colloc.submission.jobs.call_jobs import collect_call

    if any(word in ("-h", "--help") for word in argv):
        say(HELP)
        return 0
    idle_min, port, words = _read_own(argv)
    _refuse_script(words)
    # The server's alone: it is in no command line, and no server writes down one that it is given.
    token = secrets.token_hex(24)
    environment = {**read_given_environment(), "JUPYTER_TOKEN": token}
    directory = os.getcwd()  # noqa: PTH109
    idle_s = idle_min * 60
    command = _SERVER.format(port=port, idle_s=idle_s, look_s=max(1, min(60, idle_s // 4)))
    defaults = ["--job-name=notebook", "--priority=fast"]
    call = collect_call(
        [*defaults, *words, f"--wrap={command}"], environment, directory, pack=False
    )
    if call.array is not None:
        raise UsageProblem("csub notebook starts a single server", hint="leave --array out")
    for name in _NOT_HERE:
        if call.options.flag(name):
            raise UsageProblem(f"csub notebook does not take --{name}", hint="csub notebook --help")
    refuse_options_of_others(call.options, "notebook")
    session = Session.open()
    local = call.options.flag("local")
    call, policy = prepare_call(call, session, local=local, asked_on_terminal=False)
    joins = choose_packs_to_join(call, session, local=local, asked_on_terminal=False)
    placed = place_call(call, policy, session, directory, joins=joins, tell=lambda *_: None)
    if placed.joined is not None:
        member = str(placed.joined.member)
    else:
        member = f"{placed.submitted[0].job_id}/{placed.submitted[0].members[0][0]}"
    note(f"member {member} is a notebook; csub cancel {member} ends it")
    node, its_port = _await_address(member)
    say(_describe(member, node, its_port, token, idle_min))
    return 0


def _read_own(argv: Sequence[str]) -> tuple[int, int, list[str]]:
    """Minutes, the first port, and the words that are csub's.

    Raises:
        UsageProblem: A number is none.
    """
    values, words = {"idle": IDLE_MIN, "port": PORT}, list(argv)
    for name, most in (("idle", 100_000), ("port", 65_000)):
        mine = [word for word in words if word.startswith(f"--{name}=") or word == f"--{name}"]
        for word in mine:
            text = word.partition("=")[2]
            if not text.isascii() or not text.isdigit() or int(text) > most:
                raise UsageProblem(f"{word}: --{name}= takes a whole number up to {most}")
            values[name] = int(text)
            words.remove(word)
    return values["idle"], values["port"], words


def _refuse_script(words: Sequence[str]) -> None:
    from slurm_colloc.slurm.options import parse_command_line
    from slurm_colloc.submission.jobs.directives import SiteOptions

    site = SiteOptions(read_given_environment())
    extra = site.parse(lambda o: parse_command_line(words, site_options=o)).words
    if extra:
        raise UsageProblem(
            f"csub notebook takes no script: {extra[0]}", hint="csub notebook --help"
        )


def _await_address(member: str) -> tuple[str, int]:
    """The node and the port of a server, once it has said them.

    Raises:
        MemberFailed: It has ended.
    """
    has_told = False
    while True:
        session = Session.open(asks_often=True)
        ((view, (found, *_)), *_) = session.survey([Selection.parse(member)])
        if address := _find_address(view, found):
            return address
        if found.is_final:
            raise _build_failure(view, found)
        if not has_told:
            note("it waits for its GPU; once it runs, its address is shown here")
            has_told = True
        time.sleep(LOOK_S)


def _find_address(view: PackView, member: MemberView) -> tuple[str, int] | None:
    from slurm_colloc.report.member_views import read_from
    from slurm_colloc.report.show_view import find_log_paths

    if member.record is None or not member.record.starts:
        return None
    out, err = find_log_paths(view, member)
    for path in dict.fromkeys((err or out, out)):
        text = b"".join(read_from(path, 0)).decode("utf-8", "replace")
        # Behind the first address it names that of its own machine.
        for host, port in _ADDRESS.findall(text):
            if host not in ("localhost", "127.0.0.1") and 0 < int(port) < 1 << 16:
                return host, int(port)
    return None


def _build_failure(view: PackView, member: MemberView) -> MemberFailed:
    from slurm_colloc.report.member_views import read_last_line
    from slurm_colloc.report.show_view import find_log_paths

    out, err = find_log_paths(view, member)
    line = read_last_line((err, out))
    return MemberFailed(
        f"{member.member} {member.state.value} before it could be reached"
        + (f"; its last line: {line}" if line else ""),
        hint=f"csub explain {member.member}",
    )


def _describe(member: str, node: str, port: int, token: str, idle_min: int) -> str:
    login = os.uname().nodename
    end = (
        f"It ends after {idle_min} minutes without use"
        if idle_min
        else "It ends when its time is up"
    )
    return "\n".join(
        [
            f"{member} runs on {node}, port {port}. {end}, or by: csub cancel {member}",
            f"  here:               http://{node}:{port}/?token={token}",
            f"  from your machine:  ssh -L {port}:{node}:{port} {login}",
            f"                      http://localhost:{port}/?token={token}",
        ]
    )
