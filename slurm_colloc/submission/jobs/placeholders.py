"""`{lr}` in arguments, names and commands: where parameters go; pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.job import Job
from slurm_colloc.model.printable import cut

_NAME = "[A-Za-z_][A-Za-z0-9_.-]*"
_PLACEHOLDER = re.compile(rf"\{{(\{{{_NAME}\}})\}}|(?<!\$)\{{({_NAME})\}}")
"""`{{lr}}` stands for `{lr}` itself; `${HOME}` is the shell's, and `{"a": {}}` nothing special."""

_FILLED_OPTIONS = ("job-name", "output", "error", "chdir")


@dataclass
class Filler:
    """Puts the parameters of one job into its texts, and notes which were taken.

    Attributes:
        parameters: The job's parameters.
        place: Where they stand, for messages.
        taken: Those that a placeholder has taken.
    """

    parameters: Mapping[str, str]
    place: str
    taken: set[str] = field(default_factory=set)

    def fill(self, text: str, *, quoted: bool = False) -> str:
        """A text with the values instead of the placeholders.

        Args:
            text: The text.
            quoted: It is a command for a shell: each value is one word of it, whatever is in it.

        Raises:
            UsageProblem: There is no such parameter.
        """
        if "{" not in text:
            return text

        def put(match: re.Match[str]) -> str:
            literal, name = match[1], match[2]
            if literal is not None:
                return literal
            if name not in self.parameters:
                raise UsageProblem(
                    f"{self.place}: {{{cut(name)}}} stands in {cut(text)}, and there is no such "
                    "parameter",
                    hint=f"write {{{{{cut(name)}}}}} for the braces themselves",
                )
            self.taken.add(name)
            value = self.parameters[name]
            return shlex.quote(value) if quoted else value

        return _PLACEHOLDER.sub(put, text)

    def fill_job(self, job: Job) -> Job:
        """A job whose name, files and directory have the values.

        Raises:
            UsageProblem: There is no such parameter.
        """
        shape = tuple(
            (name, self.fill(value) if name in _FILLED_OPTIONS else value)
            for name, value in job.shape
        )
        return replace(
            job,
            name=self.fill(job.name),
            directory=self.fill(job.directory) if "chdir" in dict(job.shape) else job.directory,
            output=None if job.output is None else self.fill(job.output),
            error=None if job.error is None else self.fill(job.error),
            shape=shape,
        )


def find_placeholders(texts: Iterable[str]) -> list[str]:
    """The parameters that texts name, in order, each once."""
    names = (match[2] for text in texts for match in _PLACEHOLDER.finditer(text) if match[2])
    return list(dict.fromkeys(names))


def keep_literally(text: str) -> str:
    """A text that filling turns into this one."""
    return re.sub(rf"(?<!\$)\{{({_NAME})\}}", r"{{\1}}", text)
