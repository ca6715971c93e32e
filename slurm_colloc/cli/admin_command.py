"""`csub admin`: the command line of what an administrator does; standard library only.

Also: `csub admin mig export` and `assert`: a node's MIG in the file format of NVIDIA's mig-parted.

It also runs from the nodes' own installation, which has no typer.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from slurm_colloc.administration.mig_parted import (
    DividedGpu,
    build_export,
    choose_configuration,
    find_differences,
    render_yaml,
)
from slurm_colloc.administration.slurm_conf import find_places
from slurm_colloc.administration.verify_hooks import OUTCOMES
from slurm_colloc.cli.admin_fleet import add_fleet
from slurm_colloc.cli.admin_hooks import (
    CHANGE_NEEDED,
    install,
    need_root,
    say,
    uninstall,
    verify,
)
from slurm_colloc.cli.admin_job import show_job
from slurm_colloc.cli.admin_node import (
    NOT_FIT,
    recover_node,
    show_config,
    show_log,
    show_metrics,
    show_status,
)
from slurm_colloc.errors import NodeError, StateError, UsageProblem
from slurm_colloc.host.mig.mig_session import MigSession
from slurm_colloc.host.mig.plan_cut import describe_instances
from slurm_colloc.host.nvml.nvml_query import NVML_S, start_question
from slurm_colloc.session.standard_streams import read_given_file


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageProblem(message, hint=f"see {self.prog} --help")


def run_admin(argv: Sequence[str]) -> int:
    """Run one command; the exit status.

    Raises:
        CollocError: It could not be done.
    """
    parser = build_parser()
    try:
        options = parser.parse_args(list(argv))
    except SystemExit as ending:
        # --help has been printed.
        return ending.code if isinstance(ending.code, int) else 1
    command: Callable[[argparse.Namespace], int] | None = getattr(options, "run", None)
    if command is None:
        parser.print_help()
        return 2
    return command(options)


def build_parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    parser = _Parser(
        prog="csub admin", description="Install, test, show and remove the hooks on the nodes."
    )
    commands = parser.add_subparsers(metavar="COMMAND")
    _add_install(commands)
    _add_verify(commands)
    _add_uninstall(commands)
    _add_show_config(commands)
    _add_log(commands)
    _add_status(commands)
    _add_job(commands)
    _add_recover(commands)
    _add_metrics(commands)
    _add_mig(commands)
    add_fleet(commands)
    return parser


def _add_install(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "install-hooks",
        help="install prolog and epilog",
        description="Install prolog and epilog: first on every node (--node), then in "
        "slurm.conf (--controller). Nothing is changed in slurm.conf unless --slurm-conf names it.",
    )
    _add_parts(parser)
    parser.add_argument(
        "--check",
        action="store_true",
        help="change nothing, say what would be changed, and end with 0 where nothing would, "
        f"with {CHANGE_NEEDED} where something would",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.add_argument("--prefix", metavar="DIR", default="", help="the nodes' own installation")
    parser.add_argument(
        "--hooks", metavar="DIR", default="", help="our own directory of hooks on the nodes"
    )
    parser.add_argument(
        "--site-prolog", metavar="FILE", default="", help="the site's own prolog, for a later node"
    )
    parser.add_argument(
        "--site-epilog", metavar="FILE", default="", help="the site's own epilog, for a later node"
    )
    parser.set_defaults(run=install)


def _add_verify(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "verify",
        help="run the installed hooks against a job that does not exist",
        description="Run the installed hooks of this node against a job that does not exist, on a "
        "GPU that no process uses, and say what they did.",
    )
    parser.add_argument("--gpu", type=int, metavar="N", help="the GPU of /dev/nvidiaN")
    parser.add_argument("--user", default="nobody", help="whose job it would be (nobody)")
    parser.add_argument("--partition", default="", help="the job's partition, for the policy")
    parser.add_argument("--account", default="", help="the job's account, for the policy")
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.set_defaults(run=verify)


def _add_uninstall(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "uninstall",
        help="remove prolog and epilog",
        description="Remove prolog and epilog: first from slurm.conf (--controller), then from "
        "every node (--node), which is refused while Slurm still needs them.",
    )
    _add_parts(parser)
    parser.add_argument(
        "--unreferenced",
        action="store_true",
        help="with --node: do not ask Slurm; you know that slurm.conf names none of the files",
    )
    parser.set_defaults(run=uninstall)


def _add_parts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", action="store_true", help="the part on a node, as root")
    parser.add_argument("--controller", action="store_true", help="the lines of slurm.conf")
    parser.add_argument(
        "--dry-run", action="store_true", help="only say what would be done; alone: for both parts"
    )
    parser.add_argument(
        "--slurm-conf", metavar="FILE", default="", help="change this slurm.conf; keeps a backup"
    )
    parser.add_argument(
        "--slurm-config",
        metavar="FILE",
        default="",
        help="read what `scontrol show config` printed from a file instead of asking",
    )
    parser.add_argument(
        "--root", metavar="DIR", default="", help="where the image of a diskless node lies"
    )


def _add_show_config(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "show-config", help="this node's policy, and where each value comes from"
    )
    parser.add_argument("--policy", metavar="FILE", default="", help="another file")
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.set_defaults(run=show_config)


def _add_log(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser("log", help="what the hooks did on this node, job by job")
    parser.add_argument("--job", metavar="ID", help="only this job")
    parser.add_argument("--user", metavar="NAME", help="only this user's jobs, by name or number")
    parser.add_argument(
        "--outcome", choices=OUTCOMES, help="only runs with this outcome, or that did this"
    )
    parser.add_argument("--hook", metavar="NAME", help="only prolog, epilog or recover")
    parser.add_argument("--last", type=int, metavar="N", help="only the newest N lines")
    parser.add_argument("--file", metavar="FILE", default="", help="another log")
    parser.add_argument("--json", action="store_true", help="print one JSON value a line")
    parser.set_defaults(run=show_log)


def _add_job(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "job",
        help="whose a number is: its user, pack and Slurm job, as root",
        description="Look for a number that csub has given, or for a Slurm job, in the states of "
        "all users, with the rights of each.",
    )
    parser.add_argument("job", metavar="NUMBER", help="as squeue, a script or a user names it")
    parser.set_defaults(run=show_job)


def _add_status(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "status", help="jobs for which something is prepared on this node, as root"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.set_defaults(run=show_status)


def _add_recover(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "recover",
        help="undo what jobs that are gone have left, as root",
        description="Undo what jobs have left that are gone, say so for each job, and end with "
        f"{NOT_FIT} where the node is not fit for jobs. What may belong to a job that lives is "
        "left alone.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.set_defaults(run=recover_node)


def _add_metrics(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "metrics",
        help="what the hooks did, for Prometheus, as root",
        description="What the hooks of this node did, in Prometheus' text format.",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        default="",
        help="write it there at once, for node_exporter's textfile collector; and keep the sums, "
        "so that no counter falls when the log is rotated away",
    )
    parser.set_defaults(run=show_metrics)


def _add_mig(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "mig", help="how GPUs are divided, in the file format of NVIDIA's mig-parted, as root"
    )
    mig = parser.add_subparsers(metavar="COMMAND", required=True)
    export = mig.add_parser("export", help="print it")
    export.add_argument(
        "-o", "--output-format", choices=("yaml", "json"), default="yaml", help="(yaml)"
    )
    export.add_argument(
        "-l", "--config-label", dest="label", metavar="LABEL", default="current", help="(current)"
    )
    export.set_defaults(run=export_mig)
    check = mig.add_parser(
        "assert",
        help="compare it with a file",
        description="Compare all GPUs of this node with a configuration, say where they differ, "
        f"and end with {DIFFERS} then. Nothing is changed.",
    )
    check.add_argument(
        "-f", "--config-file", metavar="FILE", required=True, help="- for standard input"
    )
    check.add_argument(
        "-c", "--selected-config", metavar="LABEL", default="", help="which configuration of it"
    )
    check.add_argument("-m", "--mode-only", action="store_true", help="compare MIG modes alone")
    check.set_defaults(run=assert_mig)


# ----
# `csub admin mig export` and `assert`: a node's MIG in the file format of NVIDIA's mig-parted.

DIFFERS = 1
"""How `assert` ends where a GPU is not as the file wants it, as mig-parted does."""

_READ_S = 15.0
_LIMIT_BYTES = 1 << 20
_LABEL_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-"


def export_mig(options: argparse.Namespace) -> int:
    """Print how this node's GPUs are divided.

    Raises:
        UsageProblem: It is not root, or the label cannot stand in YAML as it is.
        NodeError: NVML does not say all of it.
    """
    if not options.label or set(options.label) - set(_LABEL_LETTERS):
        raise UsageProblem("a label has letters, digits, dots, - and _")
    spec = build_export(read_divided_gpus(), options.label)
    is_json = options.output_format == "json"
    sys.stdout.write(json.dumps(spec, indent=2) + "\n" if is_json else render_yaml(spec))
    return 0


def assert_mig(options: argparse.Namespace) -> int:
    """Compare this node's GPUs with a file; 0 where all are as it says.

    Raises:
        CollocError: It is not root, the file cannot be used, or NVML does not say all of it.
    """
    origin = "standard input" if options.config_file == "-" else options.config_file
    value = parse_file(read_given_file(options.config_file, _LIMIT_BYTES), origin)
    wishes = choose_configuration(value, options.selected_config, origin)
    told = find_differences(wishes, read_divided_gpus(), mode_only=options.mode_only)
    for line in told or ["all GPUs are as the configuration says"]:
        say(line)
    return DIFFERS if told else 0


def read_divided_gpus() -> tuple[DividedGpu, ...]:
    """How all GPUs of this node are divided.

    Raises:
        UsageProblem: It is not root: NVML lists instances for root alone.
        NodeError: NVML does not say all of it.
    """
    need_root("see what a GPU is divided into", hint="call it with sudo")
    driver, node = find_places(os.environ).driver, os.environ.get("SLURMD_NODENAME", "")
    answer = start_question(driver, node).ask(NVML_S)
    if answer.problem:
        raise NodeError(f"this node's GPUs cannot be read: {answer.problem}")
    minors = {}
    for gpu in answer.gpus:
        if gpu.uuid is None or gpu.minor_number is None:
            raise NodeError(f"NVML does not say what GPU {gpu.nvml_index} is")
        minors[gpu.uuid] = gpu.minor_number
    with MigSession(
        "", minors, driver=driver, node=node, ends_at=time.monotonic() + _READ_S
    ) as session:
        found = {gpu.uuid: gpu for gpu in session.read()}
    divided = []
    for gpu in answer.gpus:
        state = found[gpu.uuid or ""]
        if state.is_on and state.instances is None:
            raise NodeError(f"NVML does not say what GPU {gpu.nvml_index} is divided into")
        names = Counter(str(one["profile"]) for one in describe_instances(state))
        device_id = "" if state.pci_device_id is None else f"0x{state.pci_device_id:08X}"
        divided.append(DividedGpu(gpu.nvml_index, device_id, state.is_on, names))
    return tuple(divided)


def parse_file(data: bytes, origin: str) -> Any:
    """Read JSON, or YAML where PyYAML is installed (docs/decisions/0032-mig-parted-files.md).

    Args:
        data: The file.
        origin: Its name, for messages.

    Raises:
        UsageProblem: It is neither.
        StateError: It is not JSON, and there is nothing that reads YAML.
    """
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageProblem(f"{origin} is not UTF-8") from error
    except (ValueError, RecursionError):
        pass
    try:
        import yaml
    except ImportError as error:
        raise StateError(
            f"{origin} is not JSON, and PyYAML is not installed for {sys.executable}",
            hint="install python3-yaml there, or give it JSON: nvidia-mig-parted export -o json",
        ) from error
    try:
        return yaml.safe_load(data)
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageProblem(f"{origin} is neither YAML nor JSON") from error
