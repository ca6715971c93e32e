"""`csub admin metrics`: what the hooks of this node did, for Prometheus."""

from __future__ import annotations

import argparse
import os
import sys

from slurm_colloc import __version__
from slurm_colloc.administration.exposition import render_families
from slurm_colloc.administration.hook_metrics import NodeFacts, build_families
from slurm_colloc.administration.places import find_places
from slurm_colloc.administration.removal import list_jobs_with_state
from slurm_colloc.administration.totals_file import count_log, read_totals, write_totals
from slurm_colloc.administration.trusted_files import write_whole
from slurm_colloc.cli.admin_hooks import need_root
from slurm_colloc.cli.admin_node import find_place
from slurm_colloc.cli.admin_reading import find_log
from slurm_colloc.errors import CollocError, StateError, UsageProblem
from slurm_colloc.host.hook_report import Place
from slurm_colloc.host.policy import read_policy

_SUFFIX = ".prom"


def show_metrics(options: argparse.Namespace) -> int:
    """Print the metrics of this node, or write them where node_exporter finds them.

    Raises:
        CollocError: It is not root, the log cannot be read, or the file cannot be written.
    """
    need_root("read what the hooks have done", hint="call it with sudo, or from a timer of root's")
    if options.output and not options.output.endswith(_SUFFIX):
        raise UsageProblem(
            f"{options.output} does not end with {_SUFFIX}",
            hint="node_exporter's textfile collector reads no other files",
        )
    places = find_places(os.environ)
    counted = count_log(find_log(), read_totals(places.totals_path))
    families = build_families(counted.totals, _read_facts(find_place(places)))
    text = render_families(families)
    if not options.output:
        sys.stdout.write(text)
        return 0
    # First what is counted: a file that is missing once is not counted twice.
    write_totals(places.totals_path, counted)
    output = os.path.abspath(options.output)
    try:
        write_whole(output, text.encode(), 0o644)
    except OSError as error:
        raise StateError(f"cannot write {output}: {os.strerror(error.errno or 0)}") from error
    return 0


def _read_facts(place: Place) -> NodeFacts:
    try:
        is_valid, is_enabled = True, read_policy(place.policy).enabled
    except CollocError:
        is_valid = is_enabled = False
    return NodeFacts(
        jobs_prepared=len(list_jobs_with_state(place.run)),
        is_policy_valid=is_valid,
        is_enabled=is_enabled,
        version=__version__,
    )
