"""The token in a job's comment: any text is read without an exception, and little of it is one."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slurm_colloc.model.comment_token import (
    COMMENT_MAX_BYTES,
    GROUPINGS,
    WORD,
    Token,
    append_token,
    parse_token,
    render_token,
)

# Any text, surrogates that no encoding has included, and pieces that come near a token.
PIECES = st.sampled_from(
    ["[csub/1 ", "[csub/1", "[csub/2 ", "[", "]", "mps", "off", "mig=", "1g", "3g+2g", "+", "7g",
     " ", "\n", "\0", " gpus=each", " gpus=all", "gpus=each", "MPS", "mps ", "$(reboot)", "`id`",
     "../..", "[csub/1 mps]", "\udcff", "\u0663g", "\uff4dps",
     "[csub-pack=20260101-000000-0a0b0c0d]"]
)  # fmt: skip
ANY_TEXT = st.one_of(
    st.text(st.characters(), max_size=80),
    st.lists(PIECES | st.text(st.characters(), max_size=5), max_size=8).map("".join),
    # Commands, paths and links inside what looks like a token.
    st.text(st.characters(), max_size=40).map(lambda text: f"[csub/1 {text}]"),
    st.tuples(st.text(st.characters(), max_size=20), st.integers(900, 1100)).map(
        lambda pair: "x" * pair[1] + pair[0] + " [csub/1 mps]"
    ),
)
TOKENS = st.builds(
    Token,
    st.sampled_from(["mps", "off"])
    | st.lists(st.from_regex(WORD, fullmatch=True), min_size=1, max_size=7).map(
        lambda words: "mig=" + "+".join(words)
    ),
    st.sampled_from(GROUPINGS),
)
ALONE = rf"\[csub/1 (mps|off|mig={WORD}(\+{WORD})*)( gpus=each)?\]"


@pytest.mark.exhaustive
@settings(max_examples=10_000)
@given(comment=ANY_TEXT)
@example(comment="")
@example(comment="[csub/1 mps]\n")
@example(comment="x" * 10_000_000)
def test_any_text_is_read_without_an_exception_and_only_a_whole_token_means_something(
    comment: str,
) -> None:
    token = parse_token(comment)
    if token is None:
        return
    # What was understood is written there, letter by letter, at the very end.
    assert token.mode in ("mps", "off") or re.fullmatch(rf"mig={WORD}(\+{WORD}){{0,6}}", token.mode)
    assert token.grouping in GROUPINGS
    assert comment.endswith(render_token(token))
    before = comment.removesuffix(render_token(token))
    assert before == "" or before.endswith(" ")
    assert len(comment.encode("utf-8", "replace")) <= COMMENT_MAX_BYTES


@pytest.mark.exhaustive
@settings(max_examples=10_000)
@given(comment=ANY_TEXT, token=TOKENS)
def test_the_users_words_are_kept_and_the_token_is_read_again(comment: str, token: Token) -> None:
    longer = append_token(comment, token)
    assert longer.startswith(comment)
    added = longer.removeprefix(comment)
    if added:
        assert added.strip() == render_token(token)
        assert parse_token(longer) == token
        assert append_token(longer, token) == longer
    else:
        room = len(f"{comment} {render_token(token)}".encode("utf-8", "surrogatepass"))
        assert parse_token(comment) == token or room > COMMENT_MAX_BYTES


@given(token=TOKENS)
def test_a_token_is_read_as_it_is_written(token: Token) -> None:
    text = render_token(token)
    assert re.fullmatch(ALONE, text)
    assert parse_token(text) == token
    assert parse_token(f"my [own] words {text}") == token


@pytest.mark.parametrize(
    ("comment", "token"),
    [
        ("[csub/1 mps]", Token("mps", "all")),
        ("sweep 3 [csub-pack=x] [csub/1 mps]", Token("mps", "all")),
        ("[csub/1 mps gpus=each]", Token("mps", "each")),
        ("[csub/1 off]", Token("off", "all")),
        ("[csub/1 off power=400]", Token("off", "all", 400)),
        ("x [csub/1 mps gpus=each power=99]", Token("mps", "each", 99)),
        ("[csub/1 mig=7g power=1000]", Token("mig=7g", "all", 1000)),
        ("a [csub/1 mig=3g+2g+1g+1g]", Token("mig=3g+2g+1g+1g", "all")),
        ("two\nlines [csub/1 mps]", Token("mps", "all")),
        ("[csub/1 mig=1g.10gb+me+2g.20gb]", Token("mig=1g.10gb+me+2g.20gb", "all")),
        ("[csub/1 mig=3c.7g+4c.7g.80gb]", Token("mig=3c.7g+4c.7g.80gb", "all")),
        # The last one counts: csub writes behind the user.
        ("[csub/1 off] [csub/1 mps]", Token("mps", "all")),
        ("\udcff\udcfe [csub/1 mps]", Token("mps", "all")),
        ("ü" * 505 + "a [csub/1 mps]", Token("mps", "all")),
    ],
)
def test_tokens(comment: str, token: Token) -> None:
    assert parse_token(comment) == token


@pytest.mark.parametrize(
    "comment",
    [
        "", "mps", "[csub/1]", "[csub/1 ]", "[csub/2 mps]", "[CSUB/1 mps]", "[csub/1 MPS]",
        "[csub/1 mps] ", " [csub/1 mps", "[csub/1 mps]x", "x[csub/1 mps]", "[csub/1  mps]",
        "[csub/1 mps ]", "[csub/1 mps]\n", "[csub/1 mps\n]", "[csub/1 mps]\0", "[csub/1\tmps]",
        "\t[csub/1 mps]", "[csub/1 mps gpus=all]", "[csub/1 mps  gpus=each]",
        "[csub/1 gpus=each mps]", "[csub/1 mps,pct=50]", "[csub/1 mig]", "[csub/1 mig=]",
        "[csub/1 mig=5g]", "[csub/1 mig=1g+]", "[csub/1 mig=+1g]", "[csub/1 mig=1g.010gb]",
        "[csub/1 mig=1g.10GB]", "[csub/1 mig=1g+me+me]", "[csub/1 mig=1g-me+me]", "[csub/1 mig=me]",
        "[csub/1 mig=5c.7g]", "[csub/1 mig=3c.7g.]", "[csub/1 mig=1g.1000gb]",
        "[csub/1 mig=1g+1g+1g+1g+1g+1g+1g+1g]", "[csub/1 mig=\u0661g]", "[csub/1 mps]]",
        "[[csub/1 mps]", "[csub/1 $(reboot)]", "[csub/1 mps;reboot]", "[csub/1 ../../etc]",
        "ü" * 505 + "ab [csub/1 mps]", "x" * 1024 + " [csub/1 mps]",
    ],
)  # fmt: skip
def test_what_is_no_token(comment: str) -> None:
    assert parse_token(comment) is None


@pytest.mark.parametrize(
    ("mode", "grouping"),
    [("", "all"), ("mps ", "all"), ("mps\n", "all"), ("mig=", "all"), ("mps", "one"), ("mps", "")],
)
def test_no_token_can_be_made_that_would_not_be_read(mode: str, grouping: str) -> None:
    with pytest.raises(ValueError, match="no token"):
        Token(mode, grouping)


def test_a_comment_without_room_stays_as_the_user_wrote_it() -> None:
    token = Token("mps", "all")
    fits = "x" * (COMMENT_MAX_BYTES - len(" [csub/1 mps]"))
    assert append_token(fits, token) == f"{fits} [csub/1 mps]"
    assert append_token(f"{fits}x", token) == f"{fits}x"
    assert append_token("ü" * 506, token) == "ü" * 506
    assert append_token("", token) == "[csub/1 mps]"
