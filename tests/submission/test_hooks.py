"""What packs ask of their nodes' hooks: the comment, the constraint, and what is said of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.comment_token import Token, parse_token
from slurm_colloc.model.plan import MemberPlan, PackPlan, SharingMode
from slurm_colloc.settings import Settings, parse_settings
from slurm_colloc.submission.packs.call_batches import (
    HookChoice,
    HookRequest,
    build_hook_request,
    extend_comment,
    join_constraint,
)
from slurm_colloc.submission.packs.open_job import Growth

ID = "20260101-000000-0a0b0c0d"
MARK = f"[csub-pack={ID}]"
TOKEN = "[csub/1 mps]"


def make_pack(mode: SharingMode) -> PackPlan:
    return PackPlan((MemberPlan(0, 1, None, None),), 2, mode, None, (), None, ())


def ask(
    comment: str | None = None,
    constraint: str | None = None,
    *,
    hooks: HookChoice | None = None,
    modes: tuple[SharingMode, ...] = (SharingMode.MPS,),
) -> HookRequest:
    given = {"comment": comment, "constraint": constraint}
    group = {name: value for name, value in given.items() if value is not None}
    packs = [make_pack(mode) for mode in modes]
    return build_hook_request(packs, group, ID, hooks or HookChoice())


def test_the_users_words_come_first_and_the_token_last() -> None:
    assert ask() == HookRequest(f"{MARK} {TOKEN}", None)
    assert ask("for [me]").comment == f"for [me] {MARK} {TOKEN}"
    assert ask("").comment == f"{MARK} {TOKEN}"
    # What the user wrote there is no request of csub's.
    assert ask("[csub/1 off]").comment == f"[csub/1 off] {MARK} {TOKEN}"


@pytest.mark.parametrize("mode", [SharingMode.EXCLUSIVE, SharingMode.TIMESLICE])
def test_only_packs_that_share_through_mps_ask(mode: SharingMode) -> None:
    always = HookChoice("always", "csub")
    assert ask(modes=(mode,), hooks=always) == HookRequest(MARK, None)
    # Packs of one job array have one comment.
    assert ask(modes=(mode, SharingMode.MPS)).comment == f"{MARK} {TOKEN}"


def test_each_gpu_of_a_pack_of_several_gets_a_daemon() -> None:
    packs = [make_pack(SharingMode.MPS)] * 2
    hooks = HookChoice("always", "csub")
    asked = build_hook_request(packs, {}, ID, hooks, gpu_sets=(1, 1))
    assert asked == HookRequest(f"{MARK} [csub/1 mps gpus=each]", "csub")
    # One set of two GPUs has one daemon over both; of several such sets a prolog knows nothing.
    assert build_hook_request(packs, {}, ID, hooks).comment == f"{MARK} {TOKEN}"
    asked = build_hook_request(packs, {}, ID, hooks, gpu_sets=(2, 1))
    assert (asked.comment, asked.constraint) == (MARK, None)
    assert "it knows no GPU sets of several GPUs" in asked.notes[0]
    plain = [make_pack(SharingMode.TIMESLICE)] * 2
    assert build_hook_request(plain, {}, ID, hooks, gpu_sets=(2, 1)) == HookRequest(MARK, None)
    never = build_hook_request(packs, {}, ID, HookChoice("never"), gpu_sets=(2, 1))
    assert never == HookRequest(MARK, None)


@pytest.mark.parametrize(
    ("mode", "limits", "token"),
    [
        (SharingMode.MPS, (500,), "[csub/1 mps power=500]"),
        (SharingMode.EXCLUSIVE, (500,), "[csub/1 off power=500]"),
        (SharingMode.TIMESLICE, (500, 450), "[csub/1 off power=500]"),
        # One comment is for all: who needs no limit is not slowed down by the others'.
        (SharingMode.MPS, (500, 0), "[csub/1 mps]"),
    ],
)
def test_the_highest_power_limit_of_all_is_asked_for(
    mode: SharingMode, limits: tuple[int, ...], token: str
) -> None:
    packs = [replace(make_pack(mode), power_limit_w=limit) for limit in limits]
    assert build_hook_request(packs, {}, ID, HookChoice()).comment == f"{MARK} {token}"
    assert build_hook_request(packs, {}, ID, HookChoice("never")).comment == MARK


def test_never_means_as_without_hooks() -> None:
    assert ask("a", "b|c", hooks=HookChoice("never", "csub")) == HookRequest(f"a {MARK}", "b|c")


def test_the_feature_is_asked_for_where_packs_must_have_hooks() -> None:
    assert ask(hooks=HookChoice("auto", "csub")).constraint is None
    assert ask(hooks=HookChoice("always", "")).constraint is None
    assert ask(hooks=HookChoice("always", "csub")).constraint == "csub"
    assert ask(constraint="a|b", hooks=HookChoice("always", "csub")).constraint == "(a|b)&csub"


@pytest.mark.parametrize(
    ("own", "joined"),
    [
        ("", "csub"), ("a100", "a100&csub"), ("a100&ib", "a100&ib&csub"),
        ("a100,ib", "a100,ib&csub"),
        ("a100|h100", "(a100|h100)&csub"), ("csub", "csub"), ("ib&csub", "ib&csub"),
        ("csub2", "csub2&csub"), ("[rack1|rack2]", None), ("rack1*2&ib", None), ("(a|b)&c", None),
        ("gpu:a100", "gpu:a100&csub"), ("a&", None), ("a b", None),
    ],
)  # fmt: skip
def test_a_constraint_of_the_users_own_still_holds(own: str, joined: str | None) -> None:
    assert join_constraint(own, "csub") == joined


def test_where_the_feature_cannot_be_added_the_user_is_told() -> None:
    asked = ask(constraint="[rack1|rack2]", hooks=HookChoice("always", "csub"))
    assert (asked.comment, asked.constraint) == (f"{MARK} {TOKEN}", "[rack1|rack2]")
    (note,) = asked.notes
    assert note.startswith("nodes with csub are not asked for")
    assert note.endswith("--constraint=[rack1|rack2]")


_WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=1100)


# Most that is drawn is short: the rest is about as long as Slurm takes.
@given(words=_WORDS | st.builds("{}{}".format, st.integers(900, 1030).map("x".__mul__), _WORDS))
def test_a_comment_is_never_longer_than_slurm_takes(words: str) -> None:
    try:
        asked = ask(words, hooks=HookChoice("always", "csub"))
    except UsageProblem:
        assert len(f"{words} {MARK}".encode()) > 1024
        return
    assert len(asked.comment.encode()) <= 1024
    assert asked.comment.startswith(words)
    assert (parse_token(asked.comment) == Token("mps")) is not bool(asked.notes)


def test_a_comment_without_room_for_the_token_is_the_users_and_csub_says_so() -> None:
    room = 1024 - len(f" {MARK}") - len(f" {TOKEN}")
    assert ask("x" * room).comment.endswith(f"{MARK} {TOKEN}")
    asked = ask("x" * (room + 1), "b", hooks=HookChoice("always", "csub"))
    assert (asked.comment, asked.constraint) == ("x" * (room + 1) + f" {MARK}", "b")
    (note,) = asked.notes
    assert "--comment leaves no room" in note
    most = 1024 - len(f" {MARK}")
    assert ask("x" * most).comment == "x" * most + f" {MARK}"
    with pytest.raises(UsageProblem, match=r"--comment is too long: .* shorten it by 1 bytes"):
        ask("x" * (most + 1))


def test_a_pack_that_grows_gets_the_token_behind_all_that_is_there() -> None:
    auto = HookChoice()
    assert extend_comment(f"a {MARK}", ID, SharingMode.MPS, auto) == (f"a {MARK} {TOKEN}", ())
    for kept in (f"a {MARK} {TOKEN}", f"a {MARK} and more", "a", "", "[csub-pack=other]"):
        assert extend_comment(kept, ID, SharingMode.MPS, auto) == (kept, ())
    assert extend_comment(MARK, ID, SharingMode.TIMESLICE, auto) == (MARK, ())
    assert extend_comment(MARK, ID, SharingMode.MPS, HookChoice("never")) == (MARK, ())
    full = "x" * (1023 - len(MARK)) + f" {MARK}"
    comment, notes = extend_comment(full, ID, SharingMode.MPS, auto)
    assert comment == full
    assert "no room" in notes[0]


def test_growth_touches_the_comment_only_where_it_changes() -> None:
    same = Growth(None, "1", comments=("x", "x"))  # type: ignore[arg-type]
    assert same._comment("x") == {}
    other = Growth(None, "1", comments=("x", "y"))  # type: ignore[arg-type]
    assert other._comment("y") == {"Comment": "y"}


def test_settings_make_the_choice() -> None:
    assert HookChoice.of(Settings()) == HookChoice("auto", "")
    settings = Settings(**parse_settings("f", b'hooks = "always"\nhook_feature = "gpu-hooks"'))
    assert HookChoice.of(settings) == HookChoice("always", "gpu-hooks")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('hooks = "yes"', "f: hooks = 'yes' must be auto, always or never"),
        ("hooks = true", "should be of the kind of 'auto'"),
        ('hook_feature = "a&b"', "f: hook_feature = 'a&b' must be the name of one feature"),
        ('hook_feature = "a b"', "must be the name of one feature"),
    ],
)
def test_wrong_settings_are_told(text: str, words: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        parse_settings("f", text.encode())
    assert words in str(caught.value)
