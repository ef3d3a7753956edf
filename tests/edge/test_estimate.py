"""The estimate of input tokens: near enough to classify, never so high that it refuses what could fit (E10)."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_edge.estimate import estimate_tokens, fewest_tokens
from support.rules import rule


def messages(content: object, *, escaped: bool = False) -> bytes:
    return json.dumps([{"role": "user", "content": content}], ensure_ascii=escaped).encode()


@rule("E10")
@pytest.mark.parametrize(
    ("text", "true_tokens"),
    [
        # What o200k counts for the text alone, as a yardstick.
        ("The quick brown fox jumps over the lazy dog. " * 200, 2000),
        ("def add(left: int, right: int) -> int:\n    return left + right\n" * 100, 1700),
        ("안녕하세요, 오늘 회의는 오후 세 시에 시작합니다. " * 100, 1500),
        ("这个模型的上下文窗口有多大?" * 100, 900),
    ],
)
@pytest.mark.parametrize("escaped", [False, True])
def test_the_estimate_is_within_a_factor_of_two(text: str, true_tokens: int, escaped: bool) -> None:
    estimate = estimate_tokens([messages(text, escaped=escaped)])
    assert true_tokens / 2 <= estimate <= true_tokens * 2


@rule("E10")
def test_an_image_in_the_body_counts_as_an_attachment_not_as_text() -> None:
    picture = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 8000).decode()
    body = messages([{"type": "text", "text": "what is this?"}, {"type": "image_url", "image_url": {"url": picture}}])
    assert len(body) > 2_000_000
    assert 500 < estimate_tokens([body]) < 2000
    assert fewest_tokens([body]) < 10


@rule("E10")
@given(st.text(max_size=400), st.booleans())
def test_the_estimate_never_falls_below_what_is_certain(text: str, escaped: bool) -> None:
    body = messages(text, escaped=escaped)
    assert 0 <= fewest_tokens([body]) <= estimate_tokens([body]) + 1


@rule("E10")
def test_what_is_certain_is_far_below_what_any_vocabulary_needs() -> None:
    # One token of a known vocabulary holds 128 blanks; words are never joined by more than a few.
    assert fewest_tokens([b" " * 128 * 50]) <= 50
    assert fewest_tokens([b"word " * 4000]) == 1000
    assert fewest_tokens([]) == estimate_tokens([]) == 0
