"""Whatever stands in a hook's environment: no exception, nothing prepared amiss, one audit line."""

from __future__ import annotations

import os
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .hook_node import HookNode, check_clean

pytestmark = [
    pytest.mark.long,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs to be root"),
]

VARIABLES = (
    "SLURM_JOB_UID",
    "SLURM_JOB_GID",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_ACCOUNT",
    "SLURM_JOB_GPUS",
    "SLURM_JOB_CPUS_PER_NODE",
    "SLURM_JOB_SLUID",
    "SLURM_JOB_RESTART_COUNT",
    "CUDA_VISIBLE_DEVICES",
)
NASTY = (
    *("", " ", "0", "-1", "1", "4294967295", "99999999999999999999", "0x0", "1e3", "٣", "\n1"),
    *("../../etc", "/etc/passwd", "$(id)", "`id`", "a\x1b[2Jb", "%s%n", "0,0", "0,1,2", "0-3"),
    *("0,", "GPU-0", "8(x2),4", "sEKNKTV3WPV500", "x" * 5000, "\udcff"),
)
TOKENS = (
    *("[csub/1 mps]", "[csub/1 mps gpus=each]", "[csub/1 off]", "[csub/2 mps]", "[csub/1 mps] "),
    *("x[csub/1 mps]", "[csub/1 mig=3g+3g]", "[csub/1 mps mem=1]", "[csub/1 mps", "csub/1 mps]"),
)
values = st.sampled_from(NASTY) | st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40
)


@given(
    changed=st.dictionaries(st.sampled_from(VARIABLES), values, max_size=5),
    words=values,
    token=st.sampled_from(TOKENS) | values,
)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_environment_is_answered_with_one_line_at_most(
    bed: HookNode, changed: dict[str, str], words: str, token: str
) -> None:
    lines = len(bed.read_audit())
    told = bed.prolog(SLURM_JOB_COMMENT=f"{words} {token}", **changed)
    assert told.status == 0
    after = bed.read_audit()[lines:]
    assert len(after) <= 1
    assert "unforeseen" not in str(after)
    if told.audit.get("action") == "prepared":
        # Only for an ordinary user, and only on the GPU that Slurm has named.
        uid = changed.get("SLURM_JOB_UID")
        assert uid is None or int(uid) > 0
        names = changed.get("SLURM_JOB_GPUS", "0").split(",")
        uuids = {str(gpu.nvml_index): gpu.uuid for gpu in bed.node.read_gpus()}
        assert bed.setup()["gpus"] == [uuids[name] for name in names]
    ended = bed.epilog(**changed)
    assert ended.status == 0
    assert "unforeseen" not in str(bed.read_audit()[lines:])
    assert len(bed.read_audit()) - lines <= 2
    check_clean(bed)


@pytest.mark.parametrize("job_id", [*NASTY, "11\n", "011", "11 12"])
def test_a_job_id_that_is_none_is_refused_in_one_sentence(bed: HookNode, job_id: str) -> None:
    for command in ("prolog", "epilog"):
        if job_id in ("1", "4294967295"):
            continue
        ended = subprocess.run(
            bed.argv(command),
            env={os.fsencode(k): os.fsencode(v) for k, v in bed.environment(job_id).items()},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ended.returncode, ended.stdout) == (2, "")
        assert ended.stderr.count("\n") == 1
        assert "is not a job's number" in ended.stderr
    assert bed.read_audit() == []
