"""Jobs, plans and records of any content."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from slurm_colloc.model.job import ArrayTask, Job, SignalRequest
from slurm_colloc.model.plan import MemberPlan, PackRequest, SharingMode
from slurm_colloc.store.pack_directory import MemberSpec

from ..packs import build_pack

TEXTS = st.text(max_size=20)
# What os.fsdecode makes of any bytes.
PATHS = st.binary(max_size=20).map(lambda data: data.decode("utf-8", "surrogateescape"))
NUMBERS = st.integers(0, 2**40)
PAIRS = st.lists(st.tuples(TEXTS, PATHS), max_size=3).map(tuple)
SIGNALS = st.builds(SignalRequest, NUMBERS, NUMBERS, st.booleans())
TASKS = st.builds(ArrayTask, NUMBERS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
JOBS = st.builds(
    Job,
    number=NUMBERS,
    name=PATHS,
    script_name=PATHS,
    arguments=st.lists(PATHS, max_size=3).map(tuple),
    directory=PATHS,
    cpus=NUMBERS,
    host_memory_mb=st.none() | NUMBERS,
    gpus=NUMBERS,
    gpu_type=st.none() | TEXTS,
    gpu_memory_mb=st.none() | NUMBERS,
    time_limit_s=st.none() | NUMBERS,
    output=st.none() | PATHS,
    error=st.none() | PATHS,
    input=st.none() | PATHS,
    truncate_output=st.booleans(),
    asks_open_mode=st.booleans(),
    signal=st.none() | SIGNALS,
    requeue=st.none() | st.booleans(),
    export=st.none() | PATHS,
    array_task=st.none() | TASKS,
    group=PAIRS,
    shape=PAIRS,
    alone_because=TEXTS,
    alone_option=TEXTS,
    came_together=st.booleans(),
    max_slowdown=st.none() | st.floats(1.0, 100.0),
)
MEMBER_PLANS = st.builds(
    MemberPlan,
    NUMBERS,
    NUMBERS,
    st.none() | NUMBERS,
    st.none() | NUMBERS,
    st.none() | NUMBERS,
    st.none() | st.integers(1, 100),
    max_slowdown=st.none() | st.floats(1.0, 100.0),
    model_slowdown=st.none() | st.floats(1.0, 100.0),
)
SPECS = st.builds(MemberSpec, JOBS, MEMBER_PLANS, st.integers(0, 0o777))
REQUESTS = st.builds(
    PackRequest, NUMBERS, st.none() | TEXTS, NUMBERS, st.none() | NUMBERS, st.none() | NUMBERS
)
RECORDS = st.builds(
    dataclasses.replace,
    st.just(build_pack("s").record),
    index=NUMBERS,
    indices=st.lists(NUMBERS, max_size=4).map(tuple),
    is_array=st.booleans(),
    created_at=st.floats(0, 1e11),
    name=PATHS,
    mode=st.sampled_from(SharingMode),
    request=st.none() | REQUESTS,
    group=PAIRS,
    reasons=st.lists(TEXTS, max_size=3).map(tuple),
    members=st.lists(NUMBERS, max_size=4).map(tuple),
    submit_directory=PATHS,
    client_environment=PAIRS,
    slurm_options=st.lists(PATHS, max_size=3).map(tuple),
    local=st.booleans(),
)
