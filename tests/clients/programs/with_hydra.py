"""hydra's submitit launcher: a multirun is an array of jobs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

APPLICATION = """
import hydra
from omegaconf import DictConfig
from pathlib import Path

@hydra.main(version_base=None, config_path=None, config_name=None)
def main(cfg: DictConfig) -> int:
    Path(hydra.core.hydra_config.HydraConfig.get().runtime.output_dir, "square").write_text(
        str(cfg.x ** 2)
    )
    return cfg.x

main()
"""

if __name__ == "__main__":
    Path("application.py").write_text(APPLICATION)
    launcher = {"gres": "gpu:1", "timeout_min": "4", "mem_gb": "1"}
    subprocess.run(
        [
            sys.executable, "application.py", "--multirun", "hydra/launcher=submitit_slurm",
            "hydra.sweep.dir=runs", "hydra.sweep.subdir=${hydra.job.num}", "+x=1,2,3",
            *(f"hydra.launcher.{name}={value}" for name, value in launcher.items()),
        ],
        check=True,
    )  # fmt: skip
    answer = [int(Path("runs", str(number), "square").read_text()) for number in range(3)]
    Path("answer.json").write_text(json.dumps(answer))
