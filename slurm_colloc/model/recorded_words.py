"""Words of an enumeration as a record has them, those that only a newer csub knows included."""

from __future__ import annotations

import enum
from typing import TypeVar

Word = TypeVar("Word", bound=enum.StrEnum)


def read_word(kind: type[Word], text: str) -> Word:
    """The word of an enumeration, or one of its kind that is none of those known here.

    The latter is shown as it was written, equals only itself, and is in no table of this csub.

    Args:
        kind: The enumeration.
        text: What the record has.
    """
    try:
        return kind(text)
    except ValueError:
        word = str.__new__(kind, text)
        word._name_ = text
        word._value_ = text
        # A copy of a word is the word itself, as of those that are known; Python before 3.12 looks
        # for it among the enumeration's.
        word.__dict__["__deepcopy__"] = lambda _memo: word
        return word


def is_known(word: enum.StrEnum) -> bool:
    """Whether this csub knows a word that was read from a record."""
    return any(word is known for known in type(word))
