"""Programs that take most of a GPU's memory at their start: what csub check finds and advises."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_colloc.check.check_script import check_script_text
from slurm_colloc.check.python_collisions import find_python_collisions
from slurm_colloc.model.job import Job

KIND = "gpu-memory-preallocation"
JAX, TENSORFLOW = "import jax\n", "import tensorflow as tf\n"


def find(text: str, environment: dict[str, str | None] | None = None) -> list[tuple[int, str]]:
    found = find_python_collisions(text, "t.py", environment=environment or {})
    return [(f.line, f.advice) for f in found if f.kind == KIND]


JAX_ADVICE = "export XLA_PYTHON_CLIENT_PREALLOCATE=false in the script: it then takes what it needs"
TENSORFLOW_ADVICE = (
    "export TF_FORCE_GPU_ALLOW_GROWTH=true in the script: it then takes what it needs"
)


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (JAX, JAX_ADVICE),
        ("from jax import numpy as jnp\nimport jax\n", JAX_ADVICE),
        ("import flax.linen as nn\n", JAX_ADVICE),
        (TENSORFLOW, TENSORFLOW_ADVICE),
        ("from tensorflow.keras import layers\n", TENSORFLOW_ADVICE),
    ],
)
def test_an_import_without_the_setting_is_one_finding_with_the_line_to_add(
    text: str, advice: str
) -> None:
    assert find(text) == [(1, advice)]


def test_both_are_two_findings() -> None:
    assert find(JAX + TENSORFLOW) == [(1, JAX_ADVICE), (2, TENSORFLOW_ADVICE)]


@pytest.mark.parametrize(
    "text",
    [
        "import torch\n",
        "from .jax import x\n",
        "import jaxtyping\n",
        'import os\nos.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"\n' + JAX,
        'import os\nos.environ.setdefault("XLA_CLIENT_MEM_FRACTION", share)\n' + JAX,
        JAX + 'jax.config.update("jax_platforms", "cpu")\n',
        TENSORFLOW + "tf.config.experimental.set_memory_growth(gpu, True)\n",
        TENSORFLOW + 'tf.config.set_visible_devices([], "GPU")\n',
        TENSORFLOW + "config.gpu_options.allow_growth = True\n",
    ],
)
def test_what_settles_it_in_the_program_is_enough(text: str) -> None:
    assert find(text) == []


@pytest.mark.parametrize(
    ("name", "value", "is_found"),
    [
        ("XLA_PYTHON_CLIENT_PREALLOCATE", "false", False),
        ("XLA_PYTHON_CLIENT_PREALLOCATE", "0", False),
        ("XLA_PYTHON_CLIENT_PREALLOCATE", None, False),
        ("XLA_PYTHON_CLIENT_PREALLOCATE", "true", True),
        ("XLA_PYTHON_CLIENT_ALLOCATOR", "platform", False),
        ("JAX_PLATFORMS", "cpu", False),
        ("JAX_PLATFORMS", "cuda", True),
        ("TF_FORCE_GPU_ALLOW_GROWTH", "true", True),
    ],
)
def test_the_environment_settles_it_by_its_value(
    name: str, value: str | None, *, is_found: bool
) -> None:
    assert bool(find(JAX, {name: value})) is is_found


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("python t.py", True),
        ("export XLA_PYTHON_CLIENT_PREALLOCATE=false\npython t.py", False),
        ("XLA_PYTHON_CLIENT_PREALLOCATE=false python t.py", False),
        ("env XLA_PYTHON_CLIENT_PREALLOCATE=false python t.py", False),
        ('export XLA_PYTHON_CLIENT_PREALLOCATE="$1"\npython t.py', False),
        ("XLA_PYTHON_CLIENT_PREALLOCATE=false\npython t.py", True),
        ("export XLA_PYTHON_CLIENT_PREALLOCATE=true\npython t.py", True),
    ],
)
def test_the_script_is_read_for_it(body: str, tmp_path: Path, *, is_found: bool) -> None:
    (tmp_path / "t.py").write_text(JAX)
    job = Job(1, "t", "t.sh", (), str(tmp_path))
    content = f"#!/bin/bash\n{body}\n".encode()
    findings, _ = check_script_text(job, content)
    assert [f.file for f in findings if f.kind == KIND] == ["t.py"] * is_found


def test_what_csub_is_called_with_counts(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text(TENSORFLOW)
    job = Job(1, "t", "t.sh", (), str(tmp_path))
    content = b"#!/bin/bash\npython t.py\n"
    assert check_script_text(job, content)[0]
    assert check_script_text(job, content, {"TF_FORCE_GPU_ALLOW_GROWTH": "true"})[0] == []
