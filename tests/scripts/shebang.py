#!/usr/bin/env python3
#SBATCH --job-name=python
#SBATCH --cpus-per-task=1
#SBATCH --time=5
"""A batch script that is no shell script."""

import json
import os
import subprocess
import sys
from pathlib import Path

done = subprocess.run(["sh", "-c", "echo from a child; exit 2"], check=False)
record = {
    "arguments": sys.argv[1:],
    "child": done.returncode,
    "cpus": os.environ["SLURM_CPUS_PER_TASK"],
}
Path("record.json").write_text(json.dumps(record, indent=1) + "\n")
print("written", flush=True)
raise SystemExit("it ends with a message")
