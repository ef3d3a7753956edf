"""Events are cut out of bytes however these arrive, and cleaned of what breaks clients (E11, E14)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_node.adapters.sse import Event, EventSplitter, TooLongError
from support.rules import rule


def split(*parts: bytes) -> list[Event]:
    splitter = EventSplitter()
    return [event for part in parts for event in splitter.feed(part)]


def test_one_data_line_goes_on_as_it_is() -> None:
    assert split(b'data: {"a":1}\n\n') == [Event(b'data: {"a":1}\n\n', b'{"a":1}')]


def test_several_events_in_one_read_and_one_event_in_several() -> None:
    assert [event.data for event in split(b"data: a\n\ndata: b\n\n")] == [b"a", b"b"]
    assert [event.data for event in split(b"da", b"ta: a\n", b"\ndata", b": b\n\n")] == [b"a", b"b"]


@rule("E14")
@pytest.mark.parametrize(
    "noise",
    [
        b": ping\n\n",
        b":\n\n",
        b": OPENROUTER PROCESSING\n",
        b"id: 7\n",
        b"retry: 100\n",
        b"\n\n",
        b"data:\n\n",
        b"x: y\n\n",
    ],
)
def test_comments_ids_retry_times_and_empty_data_never_go_on(noise: bytes) -> None:
    assert [event.raw for event in split(noise + b"data: a\n\n")] == [b"data: a\n\n"]


def test_the_name_of_an_event_and_several_data_lines_are_kept() -> None:
    (found,) = split(b"event: message_stop\nid: 1\ndata: a\ndata: b\n\n")
    assert (found.name, found.data) == (b"message_stop", b"a\nb")
    assert found.raw == b"event: message_stop\ndata: a\ndata: b\n\n"


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_every_line_end_of_the_standard_ends_a_line(end: bytes) -> None:
    text = end.join([b"event: x", b"data: a", b"", b"data: b", b"", b""])
    # After a lone \r at the very end the other half of a \r\n may still come: one more byte settles it.
    assert [(event.name, event.data) for event in split(text, b":\n")] == [(b"x", b"a"), (b"", b"b")]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert [event.data for event in split(b"\xef", b"\xbb\xbf", b"data: a\n\n")] == [b"a"]
    assert [event.data for event in split(b"\xef\xbb\xbfdata: a\n\n")] == [b"a"]


def test_what_follows_the_last_event_is_known() -> None:
    splitter = EventSplitter()
    splitter.feed(b"data: a\n\ndata: b")
    assert splitter.unfinished == b"data: b"
    splitter.feed(b"\n\n")
    assert splitter.unfinished == b""


def test_an_event_that_never_ends_is_refused() -> None:
    with pytest.raises(TooLongError):
        split(*[b"data: " + b"x" * 512 * 1024] * 40)


_LINES = st.sampled_from(
    [b"data: a", b"data:b", b"data: \xc3\xa9", b": c", b"id: 1", b"event: e", b"", b"", b"data", b'data: {"x": "y"}']
)


@rule("E11")
@given(st.lists(_LINES, max_size=30), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.data())
def test_any_cut_of_the_bytes_gives_the_same_events(lines: list[bytes], end: bytes, data: st.DataObject) -> None:
    text = end.join(lines) + end + end + b": over\n\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(*parts) == split(text)
