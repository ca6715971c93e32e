"""A member's steps among those of its pack's Slurm job, in what Slurm's commands ask and answer.

The steps of all members have their numbers in one row. Which are a member's is told by their names:
`4711/3` is its script, `4711/3:python` one that the script has started (member_step). The script
goes by `batch`, as it does in a job of its own.
"""

from __future__ import annotations

import re

from slurm_colloc.errors import UsageProblem
from slurm_colloc.runtime.programs.member_commands import (
    OwnMember,
    become,
    read_output,
    write_output,
)
from slurm_colloc.runtime.programs.translate_calls import SSTAT, translate_words
from slurm_colloc.slurm.marked_tables import (
    AccountColumn,
    QueueField,
    QueueRow,
    build_queue_question,
    split_rows,
)
from slurm_colloc.slurm.real_command import find_real_command
from slurm_colloc.slurm.scontrol_records import join_records, split_records, split_scontrol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HEAD = {"i": "stepid", "j": "stepname"}
_SCRIPT = "batch"


class OwnSteps:
    """The steps of a member.

    Args:
        member: The member.
        names: The names of all steps of its Slurm job, by number.
    """

    def __init__(self, member: OwnMember, names: Mapping[str, str]) -> None:
        self._member = member
        own = {
            step: name_step(member, f"{member.real_id}.{step}", name)
            for step, name in names.items()
        }
        self._shown = {step: named[0] for step, named in own.items() if named is not None}

    def show(self, step: str) -> str | None:
        """What one of Slurm's steps is called; None where it is not the member's."""
        return self._shown.get(step)

    @property
    def numbers(self) -> list[str]:
        """Slurm's numbers: what the script has started, in order, and the script."""
        own = sorted(self._shown, key=lambda step: (len(step), step))
        return sorted(own, key=lambda step: self._shown[step] == _SCRIPT)

    def translate(self, command: str, text: str) -> str:
        """Ids of jobs and steps as Slurm knows them.

        Raises:
            UsageProblem: One is a step of the pack's job that is not the member's.
        """
        member = self._member
        words = []
        for word in text.split(","):
            job, dot, step = word.partition(".")
            if dot and job in (*member.ids, member.real_id):
                words.append(f"{member.real_id}.{self._find(command, job, step)}")
            else:
                words.append(member.translate(word))
        return ",".join(words)

    def choose_for_sstat(self, word: str, *, all_steps: bool) -> str:
        """What sstat is asked instead of a job or step: without a step it takes the first."""
        job, dot, _ = word.partition(".")
        member = self._member
        if dot or job not in member.ids or not self.numbers or member.is_alone:
            return self.translate("sstat", word)
        chosen = self.numbers if all_steps else self.numbers[:1]
        return ",".join(f"{member.real_id}.{step}" for step in chosen)

    def show_id(self, word: str) -> str:
        """The member's id of a step, in the place of Slurm's."""
        job, _, step = word.rpartition(".")
        own = self.show(step)
        is_own = own is not None and job == self._member.real_id
        return f"{self._member.job_id}.{own}" if is_own else word

    def _find(self, command: str, job: str, step: str) -> str:
        if self._member.is_alone:
            # All steps of the job are its own, also those that are not there.
            return step
        is_known = job in self._member.ids or step != _SCRIPT
        found = [number for number, shown in self._shown.items() if is_known and shown == step]
        if not found:
            self.refuse(command, [f"{job}.{step}"])
        return found[0]

    def refuse(self, command: str, words: Sequence[str]) -> None:
        """Refuse steps that are not the member's: those of its neighbours run in the same job.

        Raises:
            UsageProblem: Always.
        """
        job_id = self._member.job_id
        started = [step for step in self.numbers if self._shown[step] != _SCRIPT]
        known = ", ".join(f"{job_id}.{step}" for step in started) or "none"
        raise UsageProblem(
            f"{command}: {words[0]} is no step that this job has started",
            hint=f"its steps are: {known}; others are of other jobs in its pack",
        )


def name_step(member: OwnMember, step_id: str, name: str) -> tuple[str, str] | None:
    """What a step is called in a job of the member's own: its number and name.

    Args:
        member: The member.
        step_id: Slurm's id, `4711.5`.
        name: Its name in Slurm; the runner finds steps by the same names.

    Returns:
        None where it is another's.
    """
    job, _, number = step_id.rpartition(".")
    if member.is_alone:
        return (number, name) if job == member.real_id else None
    owner, colon, label = name.partition(":")
    if owner != member.name:
        return None
    return (number, label) if colon else (_SCRIPT, _SCRIPT)


def find_steps(member: OwnMember, environment: Mapping[str, str]) -> OwnSteps:
    """The member's steps; none where Slurm does not tell."""
    real = find_real_command("squeue", environment.get("PATH"))
    if real is None:
        return OwnSteps(member, {})
    words = ["squeue", "--noheader", "--steps", f"--jobs={member.real_id}", "--format=%i|%j"]
    _, text = read_output(real, words, environment)
    rows = [line.strip().partition("|") for line in text.split("\n")]
    return OwnSteps(member, {step.rpartition(".")[2]: name for step, bar, name in rows if bar})


def answer_about_steps(
    member: OwnMember, real: str, call: Sequence[str], environment: Mapping[str, str]
) -> int | None:
    """Answer a call about the member's steps; None where it is about none of them.

    Raises:
        UsageProblem: A step is named that is not the member's.
    """
    name, *arguments = call
    if name == "squeue":
        return _answer_squeue(member, real, arguments, environment)
    if name == "scontrol":
        return _answer_scontrol(member, real, arguments, environment)
    named: list[str] = []

    def note(text: str) -> str:
        named.extend(text.split(","))
        return text

    translate_words(name, arguments, member, note)
    if not any(_is_own(word, member) for word in named):
        return None
    steps = find_steps(member, environment)
    if name == "sstat":
        return _answer_sstat(real, arguments, environment, steps)
    words = translate_words(name, arguments, member, lambda text: steps.translate(name, text))
    return become(real, [name, *(words or arguments)], environment)


def _is_own(word: str, member: OwnMember) -> bool:
    """A job or step of the member, or of its pack's Slurm job."""
    return word.partition(".")[0] in (*member.ids, member.real_id)


def _write(text: str, status: int) -> int:
    return status if write_output(text) else status or 1


# ---- squeue --steps ------------------------------------------------------------------------------


def _answer_squeue(
    member: OwnMember, real: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> int | None:
    question = build_queue_question(arguments, environment, _HEAD, of_steps=True)
    if question is None or all(key != "s" for key, _, _ in question.options):
        return None
    asked = [value for key, value, _ in question.options if key in ("j", "s") and value]
    named = [word for text in (*asked, *question.operands) for word in text.split(",")]
    steps = find_steps(member, environment)
    words = question.build_words(lambda text: steps.translate("squeue", text))
    status, text = read_output(real, ["squeue", *words], environment)
    rows = split_rows(text, question.fields)
    if rows is None:
        return None
    is_own_alone = bool(named) and all(word.partition(".")[0] in member.ids for word in named)
    return _write(tell_rows(rows, member, question.fields, is_own_alone=is_own_alone), status)


def tell_rows(
    rows: Sequence[QueueRow],
    member: OwnMember,
    fields: Sequence[QueueField],
    *,
    is_own_alone: bool,
) -> str:
    """What squeue has answered, with the member's steps as those of a job of its own.

    Args:
        rows: The rows.
        member: The member.
        fields: The fields of a row.
        is_own_alone: Other steps of its pack's Slurm job were not asked for.
    """
    lines = []
    for row in rows:
        named = name_step(member, row.head[0], row.head[1]) if row.head else None
        if named is None:
            if not (row.head and is_own_alone):
                lines.append(row.text())
            continue
        step_id = f"{member.job_id}.{named[0]}"
        own = {"stepid": step_id, "stepname": named[1], "jobid": member.job_id}
        lines.append(row.replace(fields, own))
    return "\n".join(lines)


# ---- scontrol show step, listpids ----------------------------------------------------------------


def _answer_scontrol(
    member: OwnMember, real: str, arguments: Sequence[str], environment: Mapping[str, str]
) -> int | None:
    split = split_scontrol(arguments)
    if split is None or not split[1]:
        return None
    options, (verb, *operands) = split
    folded = verb.lower()
    shows_steps = folded.startswith("sh") and operands and operands[0].lower().startswith("step")
    if not shows_steps and folded != "listpids":
        return None
    named = operands[-1] if shows_steps else operands[0] if operands else ""
    named = named.partition("=")[2] if "=" in named else named
    asks_own = named.partition(".")[0] in member.ids
    steps = find_steps(member, environment)
    is_one_line = {"-o", "--oneliner"} & set(options)
    words = translate_words(
        "scontrol",
        [*(word for word in options if word not in ("-o", "--oneliner")), verb, *operands],
        member,
        lambda text: steps.translate("scontrol", text),
    )
    status, text = read_output(real, ["scontrol", *(words or arguments)], environment)
    if shows_steps:
        told = tell_records(text, member, asks_own=asks_own, is_one_line=bool(is_one_line))
    else:
        told = tell_pids(text, member, steps, asks_own=asks_own)
    return _write(told, status)


def tell_records(text: str, member: OwnMember, *, asks_own: bool, is_one_line: bool = False) -> str:
    """What `scontrol show step` has answered; of the own job alone, where that was asked for."""
    told = []
    for record in split_records(text):
        name = record.partition(" Name=")[2].partition(" Network=")[0]
        head, space, rest = record.partition(" ")
        named = name_step(member, head.partition("=")[2], name)
        if named is not None:
            rest = rest.replace(f" Name={name} ", f" Name={named[1]} ", 1)
            told.append(f"StepId={member.job_id}.{named[0]}{space}{rest}")
        elif not (asks_own and record.startswith("StepId=")):
            told.append(record)
    return join_records(told, is_one_line=is_one_line)


def tell_pids(text: str, member: OwnMember, steps: OwnSteps, *, asks_own: bool) -> str:
    """What `scontrol listpids` has answered; its columns are as wide as they are printed."""
    told = []
    for line in text.split("\n"):
        cells = line.split()
        if len(cells) != 5 or cells[1] != member.real_id:
            told.append(line)
        elif (own := steps.show(cells[2])) is not None:
            shown = zip((cells[0], member.job_id, own, *cells[3:]), (8, 8, 8, 7, 8), strict=True)
            told.append(" ".join(cell.ljust(width) for cell, width in shown))
        elif not asks_own:
            told.append(line)
    return "\n".join(told)


# ---- sstat ---------------------------------------------------------------------------------------


def _answer_sstat(
    real: str, arguments: Sequence[str], environment: Mapping[str, str], steps: OwnSteps
) -> int | None:
    split = SSTAT.split(arguments)
    if split is None:
        return None
    keys = {key for key, _, _ in split[0]}
    if keys & {"e", "h", "i", "json", "usage", "V", "yaml"}:
        return None
    words = [word for key, _, shown in split[0] if key not in ("j", "n") for word in shown]
    asked = [
        word for key, value, _ in split[0] if key == "j" and value for word in value.split(",")
    ]
    jobs = ",".join(steps.choose_for_sstat(word, all_steps="a" in keys) for word in asked)
    status, text = read_output(real, ["sstat", *words, "-j", jobs], environment)
    told = tell_table(text, steps, is_parsable=bool(keys & {"p", "P"}), has_head="n" not in keys)
    return _write(told, status)


def tell_table(text: str, steps: OwnSteps, *, is_parsable: bool, has_head: bool) -> str:
    """What sstat has answered, with its heading, by the member's number."""
    head, *lines = text.split("\n")
    if is_parsable:
        places = [place for place, name in enumerate(head.split("|")) if name == "JobID"]
        for number, line in enumerate(lines):
            cells = line.split("|")
            for place in places:
                if place < len(cells):
                    cells[place] = steps.show_id(cells[place])
            lines[number] = "|".join(cells)
        return "\n".join([head, *lines] if has_head else lines)
    dashes, *rows = lines or [""]
    columns = [(match.start(), match.end()) for match in re.finditer("-+", dashes)]
    for begin, end in columns:
        if head[begin:end].strip() != "JobID":
            continue
        column = AccountColumn(end - begin, is_left=head[begin : begin + 1] != " ")
        rows = [
            f"{row[:begin]}{column.render(steps.show_id(row[begin:end].strip()))}{row[end:]}"
            if row
            else row
            for row in rows
        ]
    return "\n".join([head, dashes, *rows] if has_head else rows)
