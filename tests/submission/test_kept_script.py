"""The batch script that is kept between calls is the one that the template gives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_colloc.submission.packs.submit_batch import render_batch_script, render_kept_script

NASTY = ("plain", "with blank", "a'b\"c", "$(touch x);`y`", "new\nline", "ü\udcff", "@csub:title@",
         "@csub:pack_path@", r"\1\g<0>")  # fmt: skip


@pytest.mark.parametrize("is_array", [True, False])
@pytest.mark.parametrize("title", NASTY)
@pytest.mark.parametrize("pack_path", NASTY)
def test_a_kept_script_equals_the_rendered_one(
    tmp_path: Path, title: str, pack_path: str, is_array: bool
) -> None:
    python = "/usr/bin/my python"
    rendered = render_batch_script(
        title=title, version="1", pack_path=pack_path, is_array=is_array, python=python,
        templates_dir="",
    )  # fmt: skip
    for _ in range(2):
        kept = render_kept_script(
            tmp_path, title=title, version="1", pack_path=pack_path, is_array=is_array,
            python=python,
        )  # fmt: skip
        assert kept == rendered


def render(kept: Path, version: str = "1", python: str = "/usr/bin/python3") -> str:
    return render_kept_script(
        kept, title="t", version=version, pack_path="/p", is_array=False, python=python
    )


def test_another_version_or_interpreter_makes_the_script_anew(tmp_path: Path) -> None:
    first = render(tmp_path)
    assert "csub 2." in render(tmp_path, version="2")
    assert "/opt/python3" in render(tmp_path, python="/opt/python3")
    assert render(tmp_path) == first


@pytest.mark.parametrize("content", ["", "{", '{"schema":1}', '{"schema":99,"key":[]}', "[]"])
def test_a_damaged_kept_script_is_made_anew(tmp_path: Path, content: str) -> None:
    whole = render(tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text(content)
    assert render(tmp_path) == whole
    assert json.loads(path.read_text())["text"]


def test_a_directory_that_is_not_there_does_no_harm(tmp_path: Path) -> None:
    assert render(tmp_path / "none") == render(tmp_path)


def test_a_second_call_does_without_jinja2(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from slurm_colloc.submission.packs.submit_batch import render_kept_script as render\n"
        "render(pathlib.Path(sys.argv[1]), title='t', version='1', pack_path='/p',\n"
        "       is_array=True, python='/usr/bin/python3')\n"
        "print('jinja2' in sys.modules)\n"
    )
    answers = [
        subprocess.run(
            [sys.executable, "-c", program, str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert answers == ["True", "False"]
