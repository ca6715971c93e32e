"""The batch script, run by bash with a Python that says how it was called."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.submission.packs.submit_batch import TEMPLATE, render_batch_script

from .test_request import compare_with_golden

HOSTILE = [
    "plain",
    "with blank",
    "quotes ' and \"",
    "new\nline",
    "semicolon;touch made",
    "$(touch made)",
    "`touch made`",
    "back\\slash",
    "star*?[a]",
    "#SBATCH --uid=0",
    "\n#SBATCH --uid=0\n",
    "-n",
    "~",
    "!history",
    "ünï",
    "%a",
]


def render(
    pack_path: str = "/state/packs/s",
    python: str = "/usr/bin/python3",
    *,
    is_array: bool = False,
    title: str = "train: 4 members",
    folder: str = "",
) -> str:
    return render_batch_script(
        title=title, version="1.2.3", pack_path=pack_path, is_array=is_array, python=python,
        templates_dir=folder,
    )  # fmt: skip


@pytest.mark.parametrize("is_array", [False, True])
def test_the_batch_script_is_the_golden_one(is_array: bool) -> None:
    text = render(is_array=is_array)
    compare_with_golden(f"batch_script{'_of_an_array' if is_array else ''}.sh", text)


def make_fake_python(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
    path.chmod(0o755)


def run(script: str, root: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    path = root / "batch"
    path.write_text(script)
    return subprocess.run(
        ["bash", path], cwd=root, env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("is_array", [False, True])
def test_the_runner_gets_the_packs_path_whatever_is_in_it(
    tmp_path: Path, name: str, is_array: bool
) -> None:
    python = tmp_path / name / "bin" / "python"
    make_fake_python(python)
    element = "17" if is_array else "0"
    pack = tmp_path / "state" / f"{name}.{element}"
    pack.mkdir(parents=True)
    (pack / "pack.json").touch()
    script = render(str(tmp_path / "state" / name), str(python), is_array=is_array, title=name)
    ended = run(script, tmp_path, SLURM_ARRAY_TASK_ID="17")
    assert ended.stderr == b""
    assert ended.returncode == 0
    assert ended.stdout.split(b"\0")[:-1] == [
        b"-IB", b"-m", b"slurm_colloc.runtime", str(pack).encode()
    ]  # fmt: skip
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", HOSTILE)
def test_no_value_becomes_a_directive(name: str) -> None:
    for line in render(f"/state/{name}", f"/opt/{name}/python", title=name).split("\n"):
        if line and not line.startswith("#"):
            # sbatch reads directives up to here.
            break
        assert not line.startswith(("#SBATCH", "#SLURM"))


@pytest.mark.parametrize("name", HOSTILE)
def test_a_node_without_the_python_or_the_pack_says_so(tmp_path: Path, name: str) -> None:
    missing = tmp_path / name / "python"
    ended = run(render("/none", str(missing)), tmp_path, HOSTNAME="n1")
    assert ended.returncode == 5
    assert ended.stderr.decode().startswith(
        f"csub: error: there is no Python at {missing} on n1: set node_python in the settings"
    )
    make_fake_python(missing)
    pack = tmp_path / "state" / name
    ended = run(render(str(pack), str(missing)), tmp_path, HOSTNAME="n1")
    assert ended.returncode == 6
    assert ended.stderr.decode().startswith(
        f"csub: error: {pack}.0 is not on n1: set state_dir in the settings"
    )
    assert not (tmp_path / "made").exists()


def test_the_script_is_plain_shell_without_warnings(tmp_path: Path) -> None:
    script = tmp_path / "batch"
    for is_array in (False, True):
        script.write_text(render(HOSTILE[2], HOSTILE[3], is_array=is_array))
        ended = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_sites_own_template_is_used_first(tmp_path: Path) -> None:
    (tmp_path / TEMPLATE).write_text("#!/bin/bash\nmodule load x\nexec {{ python | quote }}\n")
    assert render(python="/my python", folder=str(tmp_path)) == (
        "#!/bin/bash\nmodule load x\nexec '/my python'\n"
    )
    (tmp_path / TEMPLATE).unlink()
    assert render(folder=str(tmp_path)) == render()


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{{ no_such_value }}", "'no_such_value' is undefined"),
        ("ok\n{% if %}", ":2: Expected an expression"),
        ("{{ python | no_such_filter }}", ":1: No filter named 'no_such_filter'"),
        ("{% include 'none' %}", "none"),
    ],
)
def test_a_wrong_template_of_a_site_is_told_with_its_place(
    tmp_path: Path, template: str, sentence: str
) -> None:
    (tmp_path / TEMPLATE).write_text(template)
    with pytest.raises(UsageProblem) as problem:
        render(folder=str(tmp_path))
    assert problem.value.message.startswith(f"{tmp_path}/{TEMPLATE}")
    assert sentence in problem.value.message
    assert problem.value.hint == "templates_dir in the settings names the site's templates"
