"""Where the data folders are looked for, in a checkout and in an installed wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_colloc.errors import StateError
from slurm_colloc.resources import choose_data_root, data_path

ROOT = Path(__file__).resolve().parents[2]


def make_package(top: Path) -> Path:
    package = top / "slurm_colloc"
    (package / "_data" / "templates").mkdir(parents=True)
    return package


def test_a_checkout_answers_with_its_top_level_folder() -> None:
    assert data_path("hooks", "README.md") == ROOT / "hooks" / "README.md"
    assert data_path("site-config") == ROOT / "site-config"


def test_an_installed_package_answers_with_the_data_inside_it(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    assert choose_data_root(package) == package / "_data"


def test_an_installed_package_is_not_misled_by_a_neighbour_named_templates(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    (tmp_path / "templates").mkdir()
    assert choose_data_root(package) == package / "_data"


def test_a_stale_copy_inside_a_checkout_is_not_read(tmp_path: Path) -> None:
    package = make_package(tmp_path)
    (tmp_path / "templates").mkdir()
    (tmp_path / "pyproject.toml").touch()
    assert choose_data_root(package) == tmp_path


def test_a_missing_file_is_named_with_the_place_and_a_remedy() -> None:
    with pytest.raises(StateError) as caught:
        data_path("templates", "none/such.j2")
    assert "templates/none/such.j2" in str(caught.value)
    assert str(ROOT / "templates/none/such.j2") in str(caught.value)
    assert "install slurm_colloc again" in str(caught.value)


@pytest.mark.parametrize("name", ["../pyproject.toml", "/etc/passwd", "a/../../b"])
def test_a_name_that_leaves_the_folder_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a name inside templates"):
        data_path("templates", name)
