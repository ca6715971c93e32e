"""`csub notebook` starts a real Jupyter server as a member, which ends when it is not used."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from ..bed import CsubUser

pytestmark = [pytest.mark.slurm, pytest.mark.long]


def ask(address: str) -> int:
    """The status of a question to the server."""
    try:
        with urllib.request.urlopen(address, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def test_a_server_answers_to_its_token_and_ends_without_use(
    user: CsubUser, clients_python: Path
) -> None:
    path = {"PATH": f"{clients_python.parent}:{user.environment['PATH']}"}
    started = user.run(
        ["csub", "notebook", "--idle=1", "--port=18888", "--time=10", "--mem=1G"], environment=path
    )
    member = re.findall(r"member (\d+/1) is a notebook", started.stderr)[0]
    shown = re.search(r"here:\s+(http://[^/]+:(\d+)/)\?token=(\w+)", started.stdout)
    assert shown is not None
    address, port, token = shown.groups()
    assert f"ssh -L {port}:" in started.stdout
    assert ask(f"{address}api/contents?token={token}") == 200
    assert ask(f"{address}api/contents?token=wrong") == 403
    # In nothing that others may read: its output, or its command line.
    rows = user.members(member)
    assert token not in json.dumps(rows)
    assert not [path for path in user.home.glob("*.out") if token in path.read_text()]
    ended = user.finish(member, patience_s=150)[1]
    assert ended["state"] == "COMPLETED"


def test_without_jupyter_it_says_so(user: CsubUser) -> None:
    path = {"PATH": user.environment["PATH"].replace("/usr/local/bin:", "")}
    (user.home / "jupyter").write_text("#!/bin/sh\nexit 1\n")
    (user.home / "jupyter").chmod(0o755)
    path["PATH"] = f"{user.home}:{path['PATH']}"
    started = user.run(
        ["csub", "notebook", "--time=5", "--mem=300M"], environment=path, check=False
    )
    assert started.returncode == 1
    assert "FAILED before it could be reached; its last line: csub notebook: PATH has no" in (
        started.stderr
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--idle=soon"], "--idle=soon: --idle= takes a whole number up to 100000"),
        (["--port"], "--port: --port= takes a whole number up to 65000"),
        (["train.sh"], "csub notebook takes no script: train.sh"),
        (["--gres=gpu:1", "-t", "5", "train.sh"], "csub notebook takes no script: train.sh"),
        (["--array=0-3"], "csub notebook starts a single server"),
        (["--dry-run"], "csub notebook does not take --dry-run"),
    ],
)
def test_a_wrong_call_is_one_sentence(user: CsubUser, words: list[str], sentence: str) -> None:
    refused = user.csub("notebook", *words, check=False)
    assert refused.returncode == 2
    assert sentence in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert json.loads(user.csub("queue", "--all", "--json").stdout) == []
