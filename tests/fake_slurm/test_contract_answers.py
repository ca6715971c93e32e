"""What tests rely on of refusals, nodes, accounts and the configuration: fake and real."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

import pytest

from slurm_colloc.errors import SlurmRefused, SlurmUnreachable
from slurm_colloc.model.member import SlurmJobState
from slurm_colloc.slurm.accounting import read_history, read_qos
from slurm_colloc.slurm.slurm_commands import list_node_states

from ..wait_until import wait_until
from .conftest import SlurmUser


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gres=gpu:9",), "Requested node configuration is not available"),
        (("--partition=nosuch",), "Invalid partition name specified"),
        (("--dependency=nosuch",), "Job dependency problem"),
    ],
)
def test_a_wrong_request_is_refused(bed: SlurmUser, options: Sequence[str], words: str) -> None:
    with pytest.raises(SlurmRefused, match=words):
        bed.submit(*options)
    # Slurm may keep a record of a job that failed.
    states = {job.state for job in bed.client.list_jobs().values()}
    assert not states & {SlurmJobState.PENDING, SlurmJobState.RUNNING}


def test_an_index_beyond_the_largest_is_refused(bed: SlurmUser) -> None:
    size = int(bed.client.read_config()["MaxArraySize"])
    with pytest.raises(SlurmRefused, match="Invalid job array specification"):
        bed.submit(f"--array={size}")
    bed.client.cancel(bed.submit("--hold", f"--array={size - 1}"))


def test_what_names_no_element_of_an_array_does_nothing(bed: SlurmUser) -> None:
    array, single = bed.submit("--hold", "--array=7-8"), bed.submit("--hold")
    for name in (f"{array}_1", f"{single}_1"):
        bed.client.cancel(name)
        with pytest.raises(SlurmRefused, match="Invalid job id specified"):
            bed.client.hold(name)
        assert bed.client.read_job(name) is None
    states = [bed.find_state(name) for name in (f"{array}_7", f"{array}_8", single)]
    assert states == ["PENDING"] * 3
    bed.client.cancel(array, single)


def test_a_request_is_only_tried(bed: SlurmUser) -> None:
    script = bed.folder / "job.sh"
    script.write_text("#!/bin/sh\n")
    said = bed.client.check(
        str(script), ["--time=5"], environment=os.environ, directory=str(bed.folder)
    )
    assert re.match(
        # 26.05 adds a word behind the time.
        r"Job \d+ to start at \S+ (?:\S+ )?using 1 processors on nodes \S+ in partition gpu",
        said,
    )


def test_nodes_are_listed(bed: SlurmUser) -> None:
    shapes = {shape.partition: shape for shape in bed.client.list_nodes()}
    gpu = shapes["gpu"]
    assert (gpu.is_default, shapes["preempt"].is_default) == (True, False)
    assert (gpu.cpus, gpu.host_memory_mb, gpu.gpus) == (16, 16000, ((None, 2),))
    assert (gpu.time_limit_max_s, gpu.time_limit_default_s) == (7 * 86400, 3600)


def test_a_job_stays_away_from_nodes_that_are_left_out_and_goes_to_one_that_is_named(
    bed: SlurmUser,
) -> None:
    names = sorted({node.name for node in list_node_states()})
    wanted = [(f"--nodelist={name}", name) for name in names]
    if len(names) == 2:
        wanted += [(f"--exclude={names[0]}", names[1]), (f"--exclude={names[1]}", names[0])]
    for option, node in wanted:
        job_id = bed.submit(option, "--output=where.%j", script="echo $SLURMD_NODENAME")
        bed.wait_for(job_id, "COMPLETED")
        assert bed.read(f"where.{job_id}").split() == [node]
    with pytest.raises(SlurmRefused, match="Requested node configuration is not available"):
        bed.submit(f"--exclude={','.join(names)}")
    with pytest.raises(SlurmRefused, match="Invalid node name specified"):
        bed.submit("--exclude=nosuchnode")


def test_nothing_is_accounted(bed: SlurmUser) -> None:
    assert bed.client.read_accounting(["1"]) == {}
    assert read_history(None) == ([], "Slurm keeps no accounts here")
    assert read_qos().unknown == ""


def test_the_configuration_is_shown(bed: SlurmUser) -> None:
    config = bed.client.read_config()
    assert float(config["KillWait"].split()[0]) > 0
    assert config["JobRequeue"] == "1"
    assert int(config["MaxArraySize"]) > 1
    assert config["ProctrackType"].startswith("proctrack/")


def test_sbatch_tells_its_options_and_no_plug_in_adds_any(bed: SlurmUser) -> None:
    told = bed.run("sbatch", "--help").stdout
    assert told.startswith("Usage: sbatch ")
    assert "--array=" in told
    assert "Options provided by plugins:" not in told


def test_without_the_controller_nothing_is_done(bed: SlurmUser) -> None:
    job_id = bed.submit("--hold")
    asking: list[Callable[[], object]] = [
        bed.client.list_jobs,
        bed.client.list_nodes,
        lambda: bed.client.hold(job_id),
        lambda: bed.client.cancel(job_id),
        bed.submit,
    ]
    bed.cluster.stop_controller()
    try:
        for ask in asking:
            with pytest.raises(SlurmUnreachable):
                ask()
    finally:
        bed.cluster.start_controller()
    wait_until(lambda: bed.find_state(job_id) == "PENDING", "it answers again")


def test_a_cluster_by_itself_is_in_no_federation(bed: SlurmUser) -> None:
    assert bed.client.read_federation() == ""
