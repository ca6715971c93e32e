from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model.quantities import GpuRequest, parse_gpu_request


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("gpu", GpuRequest(1)),
        ("gpu:1", GpuRequest(1)),
        ("gpu=2", GpuRequest(2)),
        ("gpu:a100", GpuRequest(1, "a100")),
        ("gpu:a100:2", GpuRequest(2, "a100")),
        ("gpu:a100=2", GpuRequest(2, "a100")),
        ("gpu:1g.10gb:1", GpuRequest(1, "1g.10gb")),
        ("gpu:1g.10gb", GpuRequest(1, "1g.10gb")),
        ("gres/gpu:1", GpuRequest(1)),
        ("gpu:1,tmp:5", GpuRequest(1, None, ("tmp:5",))),
        ("shard:3", GpuRequest(0, None, ("shard:3",))),
        ("gpumem:8", GpuRequest(0, None, ("gpumem:8",))),
        ("gpu:v100:1,gpu:a100:2", GpuRequest(3)),
        ("gpu:a100:1,gpu:a100:2", GpuRequest(2, "a100")),
        ("gpu:0", GpuRequest(0)),
        ("gpu:1k", GpuRequest(1024)),
        ("none", GpuRequest(0)),
        ("NONE", GpuRequest(0)),
    ],
)
def test_gpus_are_found_in_gres(text: str, request_: GpuRequest) -> None:
    assert parse_gpu_request(text) == request_


@pytest.mark.parametrize("option", ["gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"])
@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("1", GpuRequest(1)),
        ("a100", GpuRequest(1, "a100")),
        ("a100:2", GpuRequest(2, "a100")),
        ("volta:3,kepler:1", GpuRequest(4)),
    ],
)
def test_gpus_are_counted_in_options_that_name_none(
    option: str, text: str, request_: GpuRequest
) -> None:
    assert parse_gpu_request(text, option=option) == request_


@pytest.mark.parametrize(
    ("text", "request_"),
    [
        ("cpu=4,gres/gpu=1", GpuRequest(1, None, ("cpu=4",))),
        ("cpu:4,gres/gpu:a100:1", GpuRequest(1, "a100", ("cpu:4",))),
        ("cpu=4", GpuRequest(0, None, ("cpu=4",))),
    ],
)
def test_gpus_are_found_in_tres_per_task(text: str, request_: GpuRequest) -> None:
    assert parse_gpu_request(text, option="tres-per-task") == request_


@pytest.mark.parametrize(
    ("text", "option", "sentence"),
    [
        ("", "gres", "--gres= names nothing: write for example gpu:1"),
        (",", "gpus", "--gpus=, names nothing: write for example 1"),
        ("gpu:", "gres", "'' is not a GPU type"),
        ("gpu:a100:x", "gres", "'x' is not a number of GPUs"),
        ("gpu=x", "gres", "'x' is not a number of GPUs"),
        ("gpu:a:b:1", "gres", "'a:b' is not a GPU type"),
        ("a b:1", "gpus", "'a b' is not a GPU type"),
        ("gres/gpu=", "tres-per-task", "'' is not a number of GPUs"),
    ],
)
def test_a_malformed_entry_is_refused_with_a_sentence(
    text: str, option: str, sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"^--{option}=") as caught:
        parse_gpu_request(text, option=option)
    assert sentence in str(caught.value)


@given(
    st.text(alphabet="gpu:=,/a1 k()", max_size=14),
    st.sampled_from(["gres", "gpus", "tres-per-task"]),
)
def test_no_text_makes_the_parser_fail_otherwise(text: str, option: str) -> None:
    try:
        request = parse_gpu_request(text, option=option)
    except ValueError as error:
        message = str(error)
        assert message.startswith(f"--{option}=")
    else:
        assert request.count >= 0
        assert request.type is None or request.count > 0
