"""The words of a Slurm command by the rules of getopt_long(3), for one set of options.

Imports nothing: the shims that start often need it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class CommandOptions:
    """The options of a command.

    Args:
        letters: As for getopt(3): `a` a flag, `b:` with a value, `c::` with one that is attached.
        names: Long names and the letters that mean the same; one without a letter names itself.
        with_value: Those of the latter that have a value.
    """

    def __init__(
        self, letters: str, names: Mapping[str, str], with_value: Sequence[str] = ()
    ) -> None:
        self._names = names
        self._takes: dict[str, int] = dict.fromkeys(with_value, 1)
        for position, letter in enumerate(letters):
            if letter != ":":
                rest = letters[position + 1 :]
                self._takes[letter] = len(rest) - len(rest.lstrip(":"))

    def split(
        self, words: Sequence[str]
    ) -> tuple[list[tuple[str, str | None, list[str]]], list[str]] | None:
        """Options as (letter or name, value, the words as they stood), and all other words.

        Returns:
            None where a word is not an option of this command.
        """
        options: list[tuple[str, str | None, list[str]]] = []
        operands: list[str] = []
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if word == "--":
                return options, operands + rest
            if word[:1] != "-" or word == "-":
                operands.append(word)
            elif word[:2] == "--":
                found = self._split_long(word, rest)
                if found is None:
                    return None
                options.append(found)
            elif not self._split_letters(word, rest, options):
                return None
        return options, operands

    def _split_long(self, word: str, rest: list[str]) -> tuple[str, str | None, list[str]] | None:
        name, equals, value = word[2:].partition("=")
        fitting = {self._names[name]} if name in self._names else set()
        if not fitting:
            fitting = {key for long, key in self._names.items() if long.startswith(name)}
        if len(fitting) != 1:
            return None
        key = fitting.pop()
        if equals or self._takes.get(key, 0) != 1:
            return key, value if equals else None, [word]
        if not rest:
            return None
        return key, rest[0], [word, rest.pop(0)]

    def _split_letters(
        self, word: str, rest: list[str], options: list[tuple[str, str | None, list[str]]]
    ) -> bool:
        for position, letter in enumerate(word[1:], start=2):
            takes = self._takes.get(letter)
            if takes is None:
                return False
            attached = word[position:]
            if takes and attached:
                options.append((letter, attached, [f"-{letter}{attached}"]))
                return True
            if takes == 1:
                if not rest:
                    return False
                options.append((letter, rest[0], [f"-{letter}", rest.pop(0)]))
                return True
            options.append((letter, None, [f"-{letter}"]))
        return True


def split_ids(text: str) -> list[str]:
    """Ids between commas; those within brackets part none."""
    words, depth = [""], 0
    for letter in text:
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            words.append("")
        else:
            words[-1] += letter
    return [word.strip() for word in words if word.strip()]
