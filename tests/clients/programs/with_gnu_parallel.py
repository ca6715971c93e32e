"""GNU parallel: six submissions at once, and four that wait for their jobs, by the name given."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

OPTIONS = ("--gres=gpu:1", "--mem=200M", "--time=5")
PARALLEL = ("parallel", "--will-cite", "--jobs=4")


def run(*words: str) -> str:
    return subprocess.run([*PARALLEL, *words], capture_output=True, text=True, check=False).stdout


if __name__ == "__main__":
    command = sys.argv[1]
    Path("say.sh").write_text('#!/bin/bash\necho "$1" >"said.$2"\n')
    ids = run(command, "--parsable", *OPTIONS, "--wrap={}", ":::",
              *(f"touch done.{number}" for number in range(6)))  # fmt: skip
    # Two words of each line, one with a blank.
    run("--colsep=,", command, *OPTIONS, "say.sh", "{1}", "{2}", ":::", "two words,1", "é,2")
    lines = run("--joblog=log", "--keep-order", command, "--wait", *OPTIONS, "--wrap='exit {}'",
                ":::", "0", "3", "0", "7")  # fmt: skip
    while len(list(Path().glob("done.*"))) < 6 or len(list(Path().glob("said.*"))) < 2:
        time.sleep(0.2)
    log = [line.split("\t") for line in Path("log").read_text().splitlines()[1:]]
    answer = {
        "ids": [len(ids.split()), all(word.isdigit() for word in ids.split())],
        "said": sorted(path.read_text() for path in Path().glob("said.*")),
        "lines": [" ".join(line.split()[:-1]) for line in lines.splitlines()],
        "statuses": [row[6] for row in sorted(log, key=lambda row: int(row[0]))],
    }
    Path("answer.json").write_text(json.dumps(answer))
