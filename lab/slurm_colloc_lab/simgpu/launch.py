"""Start one of the simulation's programs by path: launch.py MODULE [ARGUMENT...].

SIM/bin calls it with `python -I`, so that the user's environment, directory and own packages do not
change what is imported. MODULE has `main(argv) -> int`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path


def main() -> int:
    """Run the module's main."""
    own = Path(__file__).resolve().parents[2]
    # In a checkout slurm_colloc lies one level higher.
    above = [own.parent] if (own.parent / "slurm_colloc").is_dir() else []
    sys.path += [str(root) for root in (own, *above) if str(root) not in sys.path]
    module = importlib.import_module(f"slurm_colloc_lab.simgpu.{sys.argv[1]}")
    return int(module.main(sys.argv[2:]) or 0)


if __name__ == "__main__":
    sys.exit(main())
