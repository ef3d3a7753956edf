"""The estimate of input tokens: near enough to classify, never so high that it refuses what could fit (E10)."""

from __future__ import annotations

import base64
import json
import time

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
    assert 500 < estimate_tokens([body]) < 2500
    assert fewest_tokens([body], 10**9) < 20


@rule("E10")
@given(st.text(max_size=400), st.booleans())
def test_the_estimate_never_falls_below_what_is_certain(text: str, escaped: bool) -> None:
    body = messages(text, escaped=escaped)
    assert 0 <= fewest_tokens([body], 10**9) <= estimate_tokens([body]) + 1


@rule("E10")
def test_what_is_certain_is_far_below_what_any_vocabulary_needs() -> None:
    # One token of a known vocabulary holds 128 blanks; words are never joined by more than a few.
    assert fewest_tokens([b" " * 128 * 50], 10**9) <= 50
    assert fewest_tokens([b"word " * 4000], 10**9) == 1000
    assert fewest_tokens([], 0) == estimate_tokens([]) == 0


@rule("E10")
def test_certainty_is_not_counted_further_than_it_is_asked_for() -> None:
    assert 1000 < fewest_tokens([b"word " * 10_000_000], 1000) < 500_000


@rule("E10")
@pytest.mark.parametrize(
    "text",
    [
        b"A" * 2047 + b" ",  # long runs that just fail to be base64 blocks
        b'"",',
        b"\\u00e9",
        "\u00e9".encode(),
        b"word ",
        b"base64",
    ],
)
def test_the_cost_grows_with_the_bytes_and_no_faster(text: bytes) -> None:
    """A hostile body of 8 MiB costs what any other does: far below a second, where a quadratic one takes minutes."""
    body = b"base64" + text * (8 * 1024 * 1024 // len(text))
    begun = time.process_time()
    estimate_tokens([body])
    fewest_tokens([body], 10**9)
    assert time.process_time() - begun < 5
