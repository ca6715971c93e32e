"""The token in a job's comment that asks the node's hooks for MPS or MIG.

The comment belongs to the user, who can also change it while the job runs. So the token is read by
one anchored pattern with a closed vocabulary, and gives no right: what root does is decided by the
node's own policy. hooks/prolog.sh and site-config/job_submit.lua know the same pattern.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

COMMENT_MAX_BYTES = 1024
"""A longer comment is refused by Slurm at submission, and holds no token for us."""

PACK_TOKEN = "[csub-pack={submission}]"
"""In the comment of every pack's job, before the token: by it csub finds a job again."""

GROUPINGS = ("all", "each")
"""One daemon for all GPUs of the job, or one for each."""

# ---- What a MIG layout looks like, for code that only has to recognize one; pure -----------------
#
# hooks/prolog.sh and site-config/job_submit.lua know the same grammar.

WORDS_MAX = 7
"""No GPU has more compute slices."""

LAYOUT_MAX_CHARACTERS = 160
"""Seven of the longest words have 132."""

ATTRIBUTE = r"\+me\.all|\+me|-me|\+gfx"
"""What may follow a profile's size: media engines, all of them or none, graphics."""

PROFILE_WORD = rf"[12347]g(?:\.[1-9][0-9]{{0,2}}gb)?(?:{ATTRIBUTE})?"
"""A profile's name, its memory left out or not."""

WORD = rf"(?:[123467]c\.)?{PROFILE_WORD}"
LAYOUT = rf"{WORD}(?:\+{WORD}){{0,{WORDS_MAX - 1}}}"
"""A whole layout."""

# ---- The token ----------------------------------------------------------------------------------

_MODE = rf"mps|off|mig={LAYOUT}"
_POWER = "[1-9][0-9]{1,3}"
_TOKEN = (
    rf"(?as)(?:.* )?\[csub/1 (?P<mode>{_MODE})(?P<each> gpus=each)?"
    rf"(?: power=(?P<power>{_POWER}))?\]"
)


@dataclass(frozen=True)
class Token:
    """What a job asks of the hooks.

    Attributes:
        mode: `mps`, `off` (share without them), or `mig=` with the words of a layout, as in
            `mig=3g+2g+1g.20gb`, which asks for MPS where MIG cannot be had.
        grouping: `all` (one daemon for all GPUs of the job) or `each` (one for each GPU).
        power_w: The power limit of its GPUs in watts; 0 where none is asked for.

    Raises:
        ValueError: It is none of these.
    """

    mode: str
    grouping: str = "all"
    power_w: int = 0

    @property
    def layout(self) -> str:
        """The words of the MIG layout; empty where none is asked for."""
        return self.mode.removeprefix("mig=") if self.mode.startswith("mig=") else ""

    def __post_init__(self) -> None:
        if not re.fullmatch(_MODE, self.mode, re.ASCII) or self.grouping not in GROUPINGS:
            raise ValueError(f"no token: {self.mode!r}, {self.grouping!r}")
        if self.power_w and not re.fullmatch(_POWER, str(self.power_w)):
            raise ValueError(f"no power limit: {self.power_w} W")


def is_of_submission(comment: str, submission: str) -> bool | None:
    """Whether a job is of a submission of csub's, by its comment.

    Returns:
        None where it has no mark of csub's at all: its user may have changed the comment.
    """
    if PACK_TOKEN.format(submission=submission) in comment:
        return True
    return False if PACK_TOKEN.partition("{")[0] in comment else None


def parse_token(comment: str) -> Token | None:
    """Read the token at the end of a job's comment; the user's own words before it do not matter.

    Args:
        comment: Any text.

    Returns:
        The token; None where there is none, or one that is malformed. Nothing is ever raised.
    """
    if _count_bytes(comment) > COMMENT_MAX_BYTES:
        return None
    match = re.fullmatch(_TOKEN, comment)
    if match is None:
        return None
    grouping = "each" if match["each"] else "all"
    return Token(match["mode"], grouping, int(match["power"] or 0))


def render_token(token: Token) -> str:
    """The token as it stands in a comment."""
    each = " gpus=each" if token.grouping == "each" else ""
    power = f" power={token.power_w}" if token.power_w else ""
    return f"[csub/1 {token.mode}{each}{power}]"


def append_token(comment: str, token: Token) -> str:
    """The comment with the token behind it; as it is where it has the token, or has no room for it.

    Args:
        comment: The user's own words, and what csub put behind them.
        token: The token.
    """
    if parse_token(comment) == token:
        return comment
    longer = f"{comment} {render_token(token)}" if comment else render_token(token)
    return longer if _count_bytes(longer) <= COMMENT_MAX_BYTES else comment


def _count_bytes(text: str) -> int:
    """The length of a text as the environment and Slurm hold it."""
    try:
        return len(text.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        # A surrogate that no environment gives: three bytes each, like any character of its range.
        return len(text.encode("utf-8", "surrogatepass"))
