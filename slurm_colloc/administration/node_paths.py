"""Where everything of slurm_colloc lies on a node; pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_colloc.errors import UsageProblem
from slurm_colloc.host.hooks.hook_report import DRIVER_VARIABLE

BASE_VARIABLE = "SLURM_COLLOC_BASE"
"""A directory that stands for `/` in all of these paths, to try an installation out next to the
machine's own. The hooks and the policy then name paths below it too."""

_PLAIN = re.compile(r"(?:/[A-Za-z0-9_.+@-]+)+")


@dataclass(frozen=True)
class Places:
    """Paths as a node sees them.

    Args:
        base: What stands for `/`; empty on real nodes.
        root: Where the node's file system lies while files are written, for the image of a
            diskless node; empty for this machine. No file names it.
        prefix: The nodes' own installation, with `bin/python`; empty for the usual one.
        hooks: Where our hooks lie unless the site has a directory of them; empty for the usual one.
        driver: NVIDIA's lib and bin where they are not the system's own; else empty.
    """

    base: str = ""
    root: str = ""
    prefix: str = ""
    hooks: str = ""
    driver: str = ""

    @property
    def prefix_path(self) -> str:
        """The nodes' own installation."""
        return self.prefix or f"{self.base}/opt/slurm_colloc"

    @property
    def hooks_path(self) -> str:
        """Our own directory of hooks."""
        return self.hooks or f"{self.etc_path}/hooks"

    @property
    def etc_path(self) -> str:
        """Configuration."""
        return f"{self.base}/etc/slurm_colloc"

    @property
    def policy_path(self) -> str:
        """The node's policy."""
        return f"{self.etc_path}/node.toml"

    @property
    def record_path(self) -> str:
        """What was installed, for verifying and removing it."""
        return f"{self.etc_path}/installed.json"

    @property
    def run_path(self) -> str:
        """What jobs have on this node right now."""
        return f"{self.base}/run/slurm_colloc"

    @property
    def log_path(self) -> str:
        """One line for each run of a hook."""
        return f"{self.base}/var/log/slurm_colloc/hooks.log"

    @property
    def state_path(self) -> str:
        """What outlasts a reboot."""
        return f"{self.base}/var/lib/slurm_colloc"

    @property
    def totals_path(self) -> str:
        """What `csub admin metrics` has added up so far."""
        return f"{self.state_path}/hook_totals.json"

    @property
    def unit_path(self) -> str:
        """The systemd unit that tidies up after a reboot."""
        return f"{self.base}/etc/systemd/system/slurm_colloc-recover.service"

    @property
    def wants_path(self) -> str:
        """The link that enables it, as `systemctl enable` makes it."""
        directory = f"{self.base}/etc/systemd/system/multi-user.target.wants"
        return f"{directory}/slurm_colloc-recover.service"

    @property
    def logrotate_path(self) -> str:
        """How the log is rotated."""
        return f"{self.base}/etc/logrotate.d/slurm_colloc"

    def here(self, path: str) -> str:
        """Where this machine has a path of the node."""
        return f"{self.root}{path}"

    def check(self) -> Places:
        """Refuse paths that a shell or slurm.conf would read as something else.

        Raises:
            UsageProblem: One of them is relative, or holds other characters.
        """
        for name in ("base", "root", "prefix", "hooks", "driver"):
            value = getattr(self, name)
            if value and (not _PLAIN.fullmatch(value) or ".." in value.split("/")):
                raise UsageProblem(
                    f"the path {value!r} cannot be used here",
                    hint="name an absolute path of letters, digits and . _ + @ - without ..",
                )
        return self


def find_places(
    environ: Mapping[str, str], *, root: str = "", prefix: str = "", hooks: str = ""
) -> Places:
    """The places that an environment and options lead to.

    Another driver is taken over from the environment only where the whole installation is a trial:
    no user's environment names one that root's hooks load.

    Raises:
        UsageProblem: A path cannot be used.
    """
    base = _trim(environ.get(BASE_VARIABLE, ""))
    return Places(
        base=base,
        root=_trim(root),
        prefix=_trim(prefix),
        hooks=_trim(hooks),
        driver=environ.get(DRIVER_VARIABLE, "") if base else "",
    ).check()


def _trim(path: str) -> str:
    return re.sub("/+", "/", path).rstrip("/")
