"""Packs that travel in their batch script, as Slurm gets them."""

from __future__ import annotations

import base64
import io
import re
import tarfile

from ..bed import CsubUser
from ..wait_until import wait_until


def test_slurm_keeps_no_secret_in_the_script_and_members_have_theirs(user: CsubUser) -> None:
    config = user.home / ".config" / "slurm_colloc"
    config.mkdir(parents=True)
    (config / "settings.toml").write_text("state_shared = false\n")
    folder = user.home / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text(
        f'#!/bin/bash\ncp "${{@: -1}}" {user.home}/sent\nexec {user.find("sbatch")} "$@"\n'
    )
    (folder / "sbatch").chmod(0o755)
    user.script("good.sh", 'echo "secret is $SECRET"; env | grep -c CARRIED')
    user.extra.update(SECRET="hunter2", PATH=f"{folder}:{user.environment['PATH']}")
    job_id = user.submit("pack", "--gres=gpu:1", "--mem=200M", "good.sh", "good.sh")
    text = (user.home / "sent").read_text()
    found = re.search(r"CSUB_ARCHIVE'[^\n]*\n(.*)\nCSUB_ARCHIVE", text, re.DOTALL)
    assert found is not None
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(found[1]))) as archive:
        names = archive.getnames()
    assert any(name.endswith("/script") for name in names)
    assert not any(name.endswith("/env") for name in names)
    assert "hunter2" not in text
    for number in (1, 2):
        name = f"slurm-{job_id}_{number}.out"
        wait_until(
            lambda name=name: user.output(name) == "secret is hunter2\n0\n",  # type: ignore[misc]
            f"{name} is written",
        )
    user.finish(job_id)
    assert not list(user.state.rglob("env"))
