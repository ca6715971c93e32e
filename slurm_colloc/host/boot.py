"""In which boot and which pid namespace a pid means something."""

from __future__ import annotations

import os


def read_boot_id() -> str:
    """The kernel's name for this boot; empty where unreadable."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def read_pid_namespace() -> int:
    """Inode number of this process's pid namespace; 0 where unreadable."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
