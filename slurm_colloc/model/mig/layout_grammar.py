"""What a MIG layout looks like, for code that only has to recognize one; pure.

hooks/prolog.sh and site-config/job_submit.lua know the same grammar.
"""

from __future__ import annotations

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
