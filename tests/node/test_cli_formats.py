"""The six output formats, over transcripts in the shape of each tool: what they say and how they end (N9)."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from attrs import field, frozen
from hypothesis import given
from hypothesis import strategies as st

from iop_node.adapters.cli_formats import FORMATS, Event, Reasoning, Session, Text, Verdict
from iop_node.adapters.cli_formats.base import LINE_MAX, Lines
from iop_node.link import Usage
from support.rules import rule

TRANSCRIPTS = Path(__file__).parent / "transcripts"
CLAUDE, CODEX, GEMINI, OPENCODE = "claude-stream-json", "codex-jsonl", "gemini-stream-json", "opencode-json"
CLAUDE_ID = "3f1b6a52-9d0e-4c55-8a57-0c2d4e6f8a90"
CODEX_ID = "0199d6a4-3f7b-7c21-b0ad-4f9c8e2d1a55"
GEMINI_ID = "b2c1d0e9-8f7a-4b6c-9d5e-4f3a2b1c0d9e"
OPENCODE_ID = "ses_6f1d2c3b4a59XyZ"


@frozen
class Said:
    """Everything that a run's output came to."""

    text: str = ""
    session: str = ""
    verdict: Verdict = field(factory=lambda: Verdict(True))
    reasoning: str = ""


def read(form: str, pieces: list[bytes], exit_code: int) -> Said:
    """Feed the pieces to a parser of this format and end it."""
    parser = FORMATS[form]()
    events: list[Event] = []
    for piece in pieces:
        events += parser.feed(piece)
    last, verdict = parser.finish(exit_code)
    events += last
    return Said(
        "".join(event.text for event in events if isinstance(event, Text)),
        "".join(event.session_id for event in events if isinstance(event, Session)),
        verdict,
        "".join(event.text for event in events if isinstance(event, Reasoning)),
    )


def ok(inputs: int, outputs: int, cached: int = 0, finish: str = "stop") -> Verdict:
    return Verdict(True, usage=Usage(inputs, outputs, cached, from_runtime=True), finish_reason=finish)


def failed(message: str, status: int | None = None, usage: Usage | None = None, told: bool = True) -> Verdict:
    return Verdict(False, message, status, usage, told=told)


NOTHING = Usage(from_runtime=True)
CASES: dict[str, tuple[str, int, Said]] = {
    "claude-plain": (CLAUDE, 0, Said("Seoul is the capital of Korea.", CLAUDE_ID, ok(1012, 7, 900))),
    "claude-partial": (CLAUDE, 0, Said("Hello, 세계", CLAUDE_ID, ok(1012, 7, 900), "The user greets.")),
    "claude-tools": (
        CLAUDE, 0, Said("I look at the file.\n\nIt holds one line.", CLAUDE_ID, ok(1012, 7, 900)),
    ),
    "claude-result-only": (CLAUDE, 0, Said("Only here.", CLAUDE_ID, ok(1012, 7, 900))),
    "claude-length": (CLAUDE, 0, Said("cut sho", CLAUDE_ID, ok(1012, 7, 900, "length"))),
    "claude-cut-retry": (CLAUDE, 0, Said("One, two, three.", CLAUDE_ID, ok(1012, 7, 900))),
    "claude-says-api-error": (
        CLAUDE, 0, Said("API Error: is a phrase that logs use.", CLAUDE_ID, ok(1012, 7, 900)),
    ),
    "claude-api-error": (
        CLAUDE, 1, Said("", CLAUDE_ID, failed("API Error: 529 the service is overloaded", 529, NOTHING)),
    ),
    "claude-max-turns": (
        CLAUDE, 1,
        Said("Step one is done.", CLAUDE_ID, failed("error_max_turns", 400, Usage(1012, 7, 900, from_runtime=True))),
    ),
    "claude-interrupted": (
        CLAUDE, 0, Said("One", CLAUDE_ID, failed("no final event; it exited with code 0", told=False)),
    ),
    "qwen-api-error": (CLAUDE, 0, Said("", CLAUDE_ID, failed("[API Error: 401 no such key]", None, NOTHING))),
    "qwen-partial-error": (
        CLAUDE, 0, Said("The answer is", CLAUDE_ID, failed("[API Error: the stream was cut]")),
    ),
    "codex-plain": (
        CODEX, 0,
        Said("I listed them.\n\nThere are two files.", CODEX_ID, ok(5120, 31, 4096), "**Counting** the files"),
    ),
    "codex-failed": (
        CODEX, 1, Said("", CODEX_ID, failed("unexpected status 401 Unauthorized: no such key", 401)),
    ),
    "codex-reconnects": (CODEX, 0, Said("Done.", CODEX_ID, ok(9, 2))),
    "codex-cut": (
        CODEX, -9,
        Said("", CODEX_ID, failed(
            "no final event; it was ended by signal 9; its last complaint: Reconnecting... 2/5", told=False
        )),
    ),
    "gemini-plain": (GEMINI, 0, Said("I will look.\n\nTwo.", GEMINI_ID, ok(120, 20, 64))),
    "gemini-not-found": (
        GEMINI, 148, Said("", GEMINI_ID, failed("model gemini-nope is not found", 404, NOTHING)),
    ),
    "gemini-interrupted": (
        GEMINI, 0, Said("Well", GEMINI_ID, failed("no final event; it exited with code 0", told=False)),
    ),
    "opencode-plain": (OPENCODE, 0, Said("I read it.\n\nIt has one line.", OPENCODE_ID, ok(1840, 33, 1000))),
    "opencode-error": (OPENCODE, 1, Said("", OPENCODE_ID, failed("too many requests", 429))),
    "opencode-mid-step": (
        OPENCODE, 0,
        Said("I read it.", OPENCODE_ID, failed(
            "no final event; it exited with code 0", None, Usage(8, 2, from_runtime=True), told=False
        )),
    ),
    "jsonl-plain": ("jsonl", 0, Said("Hello there", "s-1", ok(4, 2))),
    "jsonl-error": ("jsonl", 1, Said("half", "", failed("the disk is full"))),
}  # fmt: skip


def transcript(name: str) -> bytes:
    return (TRANSCRIPTS / f"{name}.jsonl").read_bytes()


@rule("N9")
@pytest.mark.parametrize("name", CASES)
def test_a_transcript_says_what_its_tool_meant(name: str) -> None:
    form, exit_code, expected = CASES[name]
    assert read(form, [transcript(name)], exit_code) == expected


def test_every_transcript_is_read() -> None:
    assert {path.stem for path in TRANSCRIPTS.iterdir()} == set(CASES)


@rule("N9")
@given(st.sampled_from(sorted(CASES)), st.lists(st.integers(0, 4000), max_size=12))
def test_any_split_of_the_bytes_gives_the_same_events(name: str, cuts: list[int]) -> None:
    form, exit_code, expected = CASES[name]
    data = transcript(name)
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(places)]
    assert read(form, pieces, exit_code) == expected


@rule("N9")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[2].verdict.ok])
def test_a_good_end_with_a_bad_exit_code_is_a_failure(name: str) -> None:
    form, _, expected = CASES[name]
    verdict = read(form, [transcript(name)], 3).verdict
    assert not verdict.ok
    assert verdict.message == "it said that all went well, but it exited with code 3"
    assert verdict.usage == expected.verdict.usage


@rule("N9")
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[2].verdict.ok])
def test_without_its_last_line_no_run_is_complete(name: str) -> None:
    form, _, _ = CASES[name]
    whole = transcript(name).rstrip(b"\n")
    verdict = read(form, [whole[: whole.rindex(b"\n") + 1]], 0).verdict
    assert not verdict.ok
    assert verdict.message.startswith("no final event; it exited with code 0")


@rule("N9")
@pytest.mark.parametrize("form", [form for form in FORMATS if form != "text"])
@given(st.binary(max_size=400), st.integers(-15, 255))
def test_no_output_makes_a_parser_raise_or_succeed(form: str, noise: bytes, exit_code: int) -> None:
    said = read(
        form, [noise, b"\n{\n", b'{"type":[]}\n{"type":"result","usage":7,"stats":[],"is_error":1}\n'], exit_code
    )
    assert not said.verdict.ok or (form == "jsonl" and exit_code == 0)


@rule("N9")
@given(st.lists(st.binary(max_size=12), max_size=8))
def test_text_is_the_whole_output_without_the_line_ends_after_it(pieces: list[bytes]) -> None:
    said = read("text", pieces, 0)
    assert said.text == b"".join(pieces).decode("utf-8", "replace").rstrip("\r\n")
    assert said.verdict == Verdict(True)


@rule("N9")
def test_a_text_command_that_exits_badly_has_failed() -> None:
    assert read("text", [b"half an ans"], 2).verdict == failed("it exited with code 2", told=False)


@pytest.mark.parametrize(("exit_code", "words"), [(41, "not logged in"), (42, "session to resume"), (55, "trust")])
def test_what_gemini_only_says_by_its_exit_code_is_put_into_words(exit_code: int, words: str) -> None:
    verdict = read(GEMINI, [b""], exit_code).verdict
    assert not verdict.ok
    assert words in verdict.message


@pytest.mark.parametrize(
    ("exit_code", "status"), [(144, 400), (145, 401), (148, 404), (173, 429), (247, 503), (1, None)]
)
def test_gemini_tells_the_status_of_its_api_by_the_exit_code(exit_code: int, status: int | None) -> None:
    line = json.dumps({"type": "result", "status": "error", "error": {"message": "no"}}).encode()
    assert read(GEMINI, [line], exit_code).verdict.status == status


def test_a_parser_knows_whether_anything_began_and_whether_the_last_word_was_said() -> None:
    parser = FORMATS[CODEX]()
    assert (parser.began, parser.final) == (False, False)
    parser.feed(b"npm warn something\n")
    assert (parser.began, parser.final) == (False, False)
    parser.feed(b'{"type":"thread.started","thread_id":"x"}\n')
    assert (parser.began, parser.final) == (True, False)
    parser.feed(b'{"type":"turn.completed","usage":{}}\n')
    assert parser.final
    parser.feed(b'{"type":"turn.started"}\n')
    assert not parser.final


# -- lines ------------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=20), max_size=10), st.integers(1, 30))
def test_lines_are_those_of_the_whole_but_for_the_ones_that_are_too_long(pieces: list[bytes], limit: int) -> None:
    lines = Lines(limit)
    got = [line for piece in pieces for line in lines.feed(piece)]
    *whole, rest = b"".join(pieces).split(b"\n")
    assert got == [line for line in whole if len(line) <= limit]
    assert lines.rest() == (rest if len(rest) <= limit else b"")
    assert lines.dropped == sum(len(line) > limit for line in [*whole, rest])


def test_a_line_that_never_ends_is_not_kept() -> None:
    lines = Lines()
    for _ in range(40):
        assert list(lines.feed(b"x" * (1 << 20))) == []
        assert len(lines._buffer) <= LINE_MAX
    assert list(lines.feed(b"\nnext\n")) == [b"next"]
    assert lines.dropped == 1


def test_a_final_event_that_is_too_long_to_read_is_named_as_the_reason() -> None:
    line = json.dumps({"type": "result", "text": "x" * (LINE_MAX + 1)}).encode()
    assert "1 lines were too long to read" in read("jsonl", [line, b"\n"], 0).verdict.message
