"""What Slurm gets of a member's calls: its own ids for the member's, and nothing else changed.

The table is written from what Slurm 22.05 takes as an id in each command (man pages, and answers of
a real one); the calls are made of its words in any mix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import UsageProblem
from slurm_colloc.runtime.programs import own_steps
from slurm_colloc.runtime.programs.member_commands import OwnMember, is_other_task, names_others
from slurm_colloc.runtime.programs.member_requests import divide_scancel, divide_scontrol
from slurm_colloc.runtime.programs.member_step import rewrite_srun
from slurm_colloc.runtime.programs.own_steps import OwnSteps
from slurm_colloc.runtime.programs.translate_calls import translate_call, translate_words
from slurm_colloc.slurm.marked_tables import build_queue_question, split_rows

OWN, REAL, OTHER = "134217730", "4712", "134217731"
VALUES = {
    "job_id": OWN,
    "real_id": REAL,
    "member": "4711/3",
    "task_id": "4711_3",
    "array_id": "4711",
    "cpus": "0",
    "name": "train",
}
MEMBER = OwnMember("/state/packs/p/members/0003", VALUES)
ALONE = OwnMember(MEMBER.folder, VALUES | {"alone": "yes"})
NAMES = {
    "0": "4711/1",
    "1": "4711/3",
    "2": "4711/1:python",
    "4": "4711/3:python",
    "12": "4711/3:srun",
    "5": "4711/30:python",
    "batch": "batch",
    "extern": "extern",
}
STEPS = OwnSteps(MEMBER, NAMES)

# ---- Any mix of words ----------------------------------------------------------------------------

JOBS = {OWN: REAL, "4711_3": REAL, "4711/3": REAL, "99": "99", "98_7": "98_7", OTHER: OTHER}
WHOLE = st.sampled_from(sorted(JOBS))
PART = st.sampled_from(["", ".0", ".batch", ".extern", "+1", "+0.3"])
WORD = st.builds(lambda job, part: (f"{job}{part}", f"{JOBS[job]}{part}"), WHOLE, PART)
LIST = st.lists(WORD, min_size=1, max_size=4).map(
    lambda pairs: (",".join(one for one, _ in pairs), ",".join(one for _, one in pairs))
)
FILES = st.sampled_from([f"/tmp/d_{OWN}", f"s.{OWN}", "a b"]).map(lambda one: (one, one))

Pair = tuple[list[str], list[str]]


def same(*words: str) -> Pair:
    return list(words), list(words)


def plain(options: Sequence[Sequence[str]]) -> st.SearchStrategy[Pair]:
    return st.sampled_from([same(*words) for words in options])


def valued(*forms: Callable[[str], list[str]]) -> st.SearchStrategy[Pair]:
    """An option with ids: as it is typed, and as it is handed on, in the last of the forms."""
    return st.builds(
        lambda form, pair: (form(pair[0]), forms[-1](pair[1])), st.sampled_from(forms), LIST
    )


# What each command takes: options without ids, options with ids, and whether its operands are ids.
TABLE = {
    "sbcast": (
        plain([["-f"], ["-C"], ["-F2"], ["-s", "2m"], ["--preserve"], ["-t", OWN]]),
        valued(lambda t: ["--jobid", t], lambda t: [f"--jobid={t}"], lambda t: [f"-j{t}"]),
        False,
    ),
    "sstat": (
        plain([["-a"], ["-n"], ["-P"], ["-o", OWN], ["--noconvert"]]),
        valued(lambda t: ["-j", t], lambda t: [f"--jobs={t}"], lambda t: [f"-j{t}"]),
        False,
    ),
    "sattach": (plain([["-l"], ["-i", "0"], ["--layout"], ["-Q"]]), None, True),
    "squeue": (
        plain([["-h"], ["-r"], ["-n", OWN], ["-u", OWN], ["-w", "n1"], ["-S", "i"]]),
        valued(lambda t: [f"--jobs={t}"], lambda t: [f"-j{t}"]),
        True,
    ),
}


@given(st.data())
def test_only_words_that_are_ids_change(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(TABLE)))
    others, ids, has_operands = TABLE[name]
    pieces = data.draw(st.lists(others if ids is None else others | ids, max_size=4))
    operands = data.draw(st.lists(LIST if has_operands else FILES, max_size=2))
    typed = [word for piece, _ in pieces for word in piece] + [word for word, _ in operands]
    wanted = [word for _, piece in pieces for word in piece]
    wanted += ["--", *(word for _, word in operands)] if operands else []
    call, _ = translate_call(MEMBER, [name, *typed], {})
    assert call == [name, *wanted]
    # What Slurm gets has no number that is the member's.
    assert translate_call(MEMBER, call, {})[0] == call


@given(st.lists(st.sampled_from(["-Q", "-v", "-s", "-b", "-n"]), max_size=2), LIST)
def test_a_job_alone_has_its_id_translated_for_scancel(
    options: list[str], ids: tuple[str, str]
) -> None:
    words = [word for one in options for word in ([one, OWN] if one in ("-s", "-n") else [one])]
    call, _ = translate_call(ALONE, ["scancel", *words, ids[0]], {})
    assert call[-1] == ids[1]
    assert call.count(OWN) == words.count(OWN) or f"-s{OWN}" in call


@pytest.mark.parametrize(
    ("typed", "pack", "alone"),
    [
        (["listpids", OWN], ["listpids", REAL], ["listpids", REAL]),
        (["listpids", f"{OWN}.0", "n1"], ["listpids", f"{REAL}.0", "n1"], None),
        (["wait_job", "4711_3"], ["wait_job", REAL], None),
        (["show", "step", f"{OWN}.4"], ["show", "step", f"{REAL}.4"], None),
        (["-o", "show", "job", OWN], ["-o", "show", "job", REAL], None),
        (["show", f"job={OWN}"], ["show", f"job={REAL}"], None),
        (["show", "hostnames", OWN], None, ["show", "hostnames", OWN]),
        (["show", "node", OWN], None, ["show", "node", OWN]),
        (["requeue", OWN], None, ["requeue", REAL]),
        (["update", f"JobId={OWN}", "Name=a"], None, ["update", f"JobId={REAL}", "Name=a"]),
        (["update", "JobId=99", f"Name={OWN}"], None, ["update", "JobId=99", f"Name={OWN}"]),
        (["update", "JobId=99", "TimeLimit=5"], None, ["update", "JobId=99", "TimeLimit=5"]),
        (["ping"], None, ["ping"]),
    ],
)  # fmt: skip
def test_scontrol(typed: list[str], pack: list[str] | None, alone: list[str] | None) -> None:
    assert translate_words("scontrol", typed, MEMBER, MEMBER.translate) == pack
    if alone is not None:
        call, _ = translate_call(ALONE, ["scontrol", *typed], {})
        assert call[1:] == alone


def test_sbcast_goes_by_the_variables_too() -> None:
    given_here = {"SLURM_JOB_ID": OWN, "SLURM_JOBID": OWN, "SBCAST_FORCE": "1"}
    call, environment = translate_call(MEMBER, ["sbcast", f"s{OWN}", f"/tmp/{OWN}"], given_here)
    assert call == ["sbcast", "--", f"s{OWN}", f"/tmp/{OWN}"]
    assert environment == {"SLURM_JOB_ID": REAL, "SLURM_JOBID": REAL, "SBCAST_FORCE": "1"}


@given(
    st.lists(WHOLE | st.sampled_from([REAL, "4711"]), min_size=1, max_size=4),
    st.sampled_from([[], ["-Q"], ["-s", "TERM"], ["-v"]]),
)
def test_scancel_never_takes_the_own_job_to_slurm(ids: list[str], options: list[str]) -> None:
    division = divide_scancel([*options, ",".join(ids)], MEMBER)
    assert division is not None
    own = [one for one in ids if JOBS.get(one) == REAL]
    rest = [one for one in ids if one not in own]
    assert (division.request is not None) == bool(own)
    assert division.rest == ((*options, ",".join(rest)) if rest else None)


@given(st.lists(WHOLE, min_size=1, max_size=4), st.sampled_from(["requeue", "hold", "release"]))
def test_scontrol_goes_to_csub_by_the_members_name(ids: list[str], verb: str) -> None:
    division = divide_scontrol([verb, ",".join(ids)], MEMBER)
    assert division is not None
    words = {one for word in division.rest or () for one in word.split(",")}
    own = {one for one in ids if JOBS[one] == REAL}
    assert words - {verb} == {one for one in ids if one not in own} | (
        {"4711/3"} if own and verb != "requeue" else set()
    )
    assert (division.request is not None) == (bool(own) and verb == "requeue")


@given(st.sampled_from([None, OWN, REAL, "4711_3", "99"]), st.sampled_from(["", "-n2", "--label"]))
def test_srun_gets_the_pack_s_job(job: str | None, option: str) -> None:
    words = [*([f"--jobid={job}"] if job else []), *([option] if option else []), "echo", OWN]
    rewritten, environment = rewrite_srun(words, {"SLURM_JOB_ID": OWN}, MEMBER)
    if job == "99":
        assert rewritten is None
        return
    assert rewritten is not None
    assert environment["SLURM_JOB_ID"] == REAL
    assert rewritten[-2:] == ["echo", OWN]
    assert {f"SLURM_JOB_ID={OWN}", f"SLURM_JOBID={OWN}"} <= set(rewritten)
    assert (f"--jobid={REAL}" in rewritten) == (job is not None)


# ---- What is csub's to answer --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (OWN, False), ("4711_3", False), ("99", False), ("", False), ("train_1", False),
        # The array, and the pack's job: each means what the call submitted that printed it.
        ("4711", True), (REAL, True), (OTHER, True), ("4711_4", True), (f"{OWN},4711_4", True),
        (f"JobId={OTHER}", True),
    ],
)  # fmt: skip
def test_other_jobs_of_csub_s(word: str, expected: bool) -> None:
    assert is_other_task(word, MEMBER) is expected


def test_slurm_s_id_of_a_job_alone_is_its_own() -> None:
    assert not is_other_task(REAL, ALONE)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([f"-j{OTHER}"], True), (["-j", OTHER], True), (["-hr", "-j4711"], True),
        (["-n", "4711_4"], False), (["-o", "4711_4"], False), ([f"-j{OWN}"], False),
    ],
)  # fmt: skip
def test_of_squeue_only_ids_name_others(words: list[str], expected: bool) -> None:
    assert names_others(["squeue", *words], MEMBER) is expected


# ---- Steps ---------------------------------------------------------------------------------------


@given(
    st.sampled_from([OWN, "4711_3", "4711/3", REAL]),
    st.sampled_from([*sorted(NAMES), "9"]),
)
def test_a_step_is_the_members_or_refused(job: str, step: str) -> None:
    own = {"4": f"{REAL}.4", "12": f"{REAL}.12"} | ({} if job == REAL else {"batch": f"{REAL}.1"})
    if step in own:
        assert STEPS.translate("sattach", f"{job}.{step}") == own[step]
        return
    with pytest.raises(UsageProblem, match=f"{job}.{step} is no step that this job has started"):
        STEPS.translate("sattach", f"{job}.{step}")


def test_what_is_refused_names_what_there_is() -> None:
    with pytest.raises(UsageProblem) as refused:
        STEPS.translate("sattach", f"{OWN}.0")
    assert str(refused.value) == (
        f"sattach: {OWN}.0 is no step that this job has started: its steps are: {OWN}.4, {OWN}.12; "
        "others are of other jobs in its pack"
    )
    # Where Slurm does not tell, none is.
    with pytest.raises(UsageProblem, match="its steps are: none"):
        OwnSteps(MEMBER, {}).translate("sattach", f"{OWN}.4")


@pytest.mark.parametrize(
    ("word", "all_steps", "expected"),
    [
        # As sstat: the first step, which the script is only where it has started none.
        (OWN, False, f"{REAL}.4"),
        (OWN, True, f"{REAL}.4,{REAL}.12,{REAL}.1"),
        (f"{OWN}.batch", False, f"{REAL}.1"),
        ("99", False, "99"),
        ("99.0", True, "99.0"),
    ],
)
def test_sstat_is_asked_for_the_members_steps(word: str, all_steps: bool, expected: str) -> None:
    assert STEPS.choose_for_sstat(word, all_steps=all_steps) == expected


def test_sstat_s_tables_have_the_members_number() -> None:
    table = (
        "JobID          NTasks \n"
        "------------ -------- \n"
        "4712.4              1 \n"
        "4712.1              1 \n"
        "99.0                1 \n"
    )
    told = own_steps.tell_table(table, STEPS, is_parsable=False, has_head=True)
    assert told.splitlines()[2:] == [
        "134217730.4         1 ", "134217730.b+        1 ", "99.0                1 "
    ]  # fmt: skip
    parsable = "NTasks|JobID|\n1|4712.12|\n1|99.4|\n"
    told = own_steps.tell_table(parsable, STEPS, is_parsable=True, has_head=False)
    assert told == "1|134217730.12|\n1|99.4|\n"


def ask_steps(*arguments: str, is_own_alone: bool) -> str:
    question = build_queue_question(arguments, {}, {"i": "stepid", "j": "stepname"}, of_steps=True)
    assert question is not None
    assert question.build_words(lambda text: STEPS.translate("squeue", text))[0] == "-s"
    text = "\n".join(
        f"4712.{step}\x1f{name}\x1e\x1f4712.{step}\x1f|{name}\x1f" for step, name in NAMES.items()
    )
    rows = split_rows(f"{text}\n", question.fields)
    assert rows is not None
    return own_steps.tell_rows(rows, MEMBER, question.fields, is_own_alone=is_own_alone)


def test_squeue_lists_the_members_steps() -> None:
    told = ask_steps("-s", "-h", "-o", "%i|%j", "-j", OWN, is_own_alone=True)
    assert told.split() == [f"{OWN}.batch|batch", f"{OWN}.4|python", f"{OWN}.12|srun"]
    told = ask_steps("-s", "-h", "-o", "%i|%j", is_own_alone=False)
    assert f"{OWN}.4|python" in told
    assert "4712.2|4711/1:python" in told


STEP = "StepId=4712.{} UserId=0\n   Nodes=1 Tasks=1 Name={} Network=(null)\n   ResvPorts=(null)\n"


def test_scontrol_shows_the_members_steps() -> None:
    text = "\n".join(STEP.format(step, name) for step, name in NAMES.items()) + "\n"
    told = own_steps.tell_records(text, MEMBER, asks_own=True, is_one_line=True).splitlines()
    assert [line.split()[0] for line in told] == [
        f"StepId={OWN}.batch", f"StepId={OWN}.4", f"StepId={OWN}.12"
    ]  # fmt: skip
    assert " Name=python Network=" in told[1]
    assert own_steps.tell_records(text, MEMBER, asks_own=False).count("StepId=4712.") == 5


def test_pids_are_those_of_the_members_steps() -> None:
    text = (
        "PID      JOBID    STEPID   LOCALID GLOBALID\n"
        "10       4712     1        0       0       \n"
        "11       4712     2        0       0       \n"
        "12       4712     4        -       -       \n"
        "13       4713     4        0       0       \n"
    )
    told = own_steps.tell_pids(text, MEMBER, STEPS, asks_own=True).splitlines()
    assert [line.split()[:3] for line in told[1:]] == [
        ["10", OWN, "batch"], ["12", OWN, "4"], ["13", "4713", "4"]
    ]  # fmt: skip
