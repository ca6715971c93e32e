"""Eight sbatch at once, as GNU parallel or xargs calls them."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

LINES = """
submit() { sbatch --parsable --gres=gpu:1 --mem=200M --time=5 --wrap="touch done.$1"; }
for number in 1 2 3 4 5 6 7 8; do submit $number & done
wait
"""

if __name__ == "__main__":
    ended = subprocess.run(
        ["bash", "-c", LINES], check=True, capture_output=True, text=True
    ).stdout.split()
    while len(list(Path().glob("done.*"))) < 8:
        time.sleep(0.2)
    answer = [all(word.isdigit() for word in ended), len(ended)]
    Path("answer.json").write_text(json.dumps(answer))
