"""What csub refuses: it says why, and leaves nothing behind."""

from __future__ import annotations

from ..cluster.conftest import CsubUser


def list_state(user: CsubUser) -> set[str]:
    """What a submission leaves: packs, job ids, marks, locks and unfinished files."""
    folders = [user.state / name for name in ("packs", "open", "jobs", "making")]
    left = {str(path) for folder in folders if folder.exists() for path in folder.iterdir()}
    return left | {str(path) for path in user.state.glob("*.tmp*")}


def list_jobs(user: CsubUser) -> list[str]:
    return user.run(["squeue", "-h", "--me", "-o", "%i"]).stdout.split()


def check_refused(user: CsubUser, words: tuple[str, ...], status: int, sentence: str) -> None:
    """csub says exactly this on standard error, and has changed nothing."""
    before, jobs = list_state(user), list_jobs(user)
    ended = user.run(["csub", *words], check=False)
    assert ended.stderr == f"csub: error: {sentence}\n"
    assert (ended.returncode, ended.stdout) == (status, "")
    assert list_state(user) == before
    assert list_jobs(user) == jobs
