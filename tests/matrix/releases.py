"""The releases of Slurm that the tests run on besides the machine's own, and what a root holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """A Slurm release, and the Debian suite that brings it.

    Args:
        slurm: Major release of Slurm, such as `24.11`.
        python: Minor release of Python in the same suite.
        suite: Debian's name for the suite.
    """

    slurm: str
    python: str
    suite: str


# The oldest Python is the machine's own. What runs on it and on the newest runs on those between.
RELEASES = (
    Release("24.11", "3.13", "trixie"),
    Release("26.05", "3.14", "forky"),
)

PACKAGES = (
    # Slurm as .ci/setup installs it.
    "slurm-wlm",
    "slurmctld",
    "slurmd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "munge",
    "python3",
    "python3-venv",
    # What tests call.
    "procps",
    "util-linux",
    "strace",
    "sudo",
    # What enter.sh calls.
    "iproute2",
)

# Of the development tools in pyproject.toml, those that the tests below need; hatchling installs
# the project itself.
TOOLS = (
    "hatchling",
    "hypothesis",
    "prometheus-client",
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
)

# These folders say nothing about a release of Slurm or Python: they check the checkout, build
# packages from it, are about this matrix, the sandbox itself, or the GPU, or need a database.
LEFT_OUT = (
    "accounting",
    "architecture",
    "benchmarks",
    "demo",
    "gpu",
    "host",
    "matrix",
    "mps",
    "packaging",
    "sandbox",
    "simgpu",
)
# There is no GPU and no browser in a root, and no PyTorch for the newest Python.
WITHOUT = "not (torch or gpu or demo or browser or exhaustive)"
