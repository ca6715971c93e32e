"""Texts of users and of foreign files, made harmless for a terminal; pure."""

from __future__ import annotations


def escape_controls(text: str, keep: str = "") -> str:
    """A text without control characters, line breaks and marks that turn its direction.

    What cannot be printed is shown by its number, as Python writes it. A name of a user's goes
    through here before it is put into a line: later, a line break in it cannot be told from others.

    Args:
        text: The text.
        keep: Characters that stay as they are.
    """
    if text.isprintable() or (keep and text.translate(dict.fromkeys(map(ord, keep))).isprintable()):
        return text
    return "".join(
        letter
        if letter.isprintable() or letter in keep
        else letter.encode("unicode_escape").decode()
        for letter in text
    )


def cut(text: str, most: int = 60) -> str:
    """A text that is not too long to be repeated in a message."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
