"""`report/mail.txt`: the text of the mail about a whole array, from who makes the summary."""

from __future__ import annotations

from pathlib import Path

from slurm_colloc.store.atomic_files import make_directory, read_bytes, write_atomic
from slurm_colloc.store.pack.sample_files import report_directory

_BYTES_MOST = 1 << 20


def mail_text_path(pack: Path) -> Path:
    """Where it lies."""
    return Path(report_directory(pack)) / "mail.txt"


def write_mail_text(pack: Path, text: str) -> None:
    """Write it, for the runner that waits for the summary.

    Raises:
        StateError: It cannot be written.
    """
    make_directory(report_directory(pack))
    write_atomic(mail_text_path(pack), text.encode("utf-8", "replace"), outlives_crash=False)


def read_mail_text(pack: Path) -> str:
    """What was written; empty where nothing was, or it cannot be read."""
    try:
        return read_bytes(mail_text_path(pack), _BYTES_MOST).decode("utf-8", "replace")
    except OSError:
        return ""
