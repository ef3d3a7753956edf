"""What the output formats share: the events that output turns into, bounded lines, and the verdict (N9)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import msgspec
from attrs import frozen

from iop_node.link import Usage

__all__ = ["Event", "LineParser", "Lines", "OutputParser", "Reasoning", "Session", "Text", "Verdict"]

Json = Mapping[str, object]

LINE_MAX = 8 * 2**20
"""A longer line is passed over whole: it is a tool's output or a mistake, never an answer."""
_MESSAGE_MAX = 2000


@frozen
class Text:
    """A piece of the answer."""

    text: str


@frozen
class Reasoning:
    """A piece of what the model thought before it answered."""

    text: str


@frozen
class Session:
    """The command named the session that `resume_args` can take up again."""

    session_id: str


Event = Text | Reasoning | Session


@frozen
class Verdict:
    """How a run ended: the final event and the exit code together (N9)."""

    ok: bool
    message: str = ""
    """Where `ok` is false: what went wrong, as far as the command said it."""
    status: int | None = None
    """The HTTP status that the API behind the command answered, where it told."""
    usage: Usage | None = None
    finish_reason: str = "stop"
    """`stop` or `length`."""
    told: bool = False
    """The command itself said why it failed; else its stderr may."""


class OutputParser(Protocol):
    """Reads one run's stdout. Any split of the bytes gives the same events; nothing that it reads makes it raise."""

    @property
    def began(self) -> bool:
        """Whether any event of the format was read. False after a refused resume id: then nothing was executed."""

    @property
    def final(self) -> bool:
        """Whether the final event was read: what is still missing is the exit code."""

    def feed(self, data: bytes) -> list[Event]:
        """Take the next bytes and return what they complete."""

    def finish(self, exit_code: int) -> tuple[list[Event], Verdict]:
        """Say what was still held back, and judge. `exit_code` as subprocess has it: below 0 a signal."""


class Lines:
    """Bytes → whole lines without their ends. Holds at most `limit` bytes; a longer line is dropped and counted."""

    def __init__(self, limit: int = LINE_MAX) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._searched = 0
        self._skipping = False
        self.dropped = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Return the lines that end in `data`; each byte is looked at once, however small the pieces."""
        self._buffer += data
        start = 0
        while (end := self._buffer.find(b"\n", max(start, self._searched))) >= 0:
            if self._skipping:
                self._skipping = False
            elif end - start > self._limit:
                self.dropped += 1
            else:
                yield bytes(self._buffer[start:end])
            start = end + 1
            self._searched = start
        del self._buffer[:start]
        if len(self._buffer) > self._limit or self._skipping:
            self.dropped += not self._skipping
            self._skipping = True
            self._buffer.clear()
        self._searched = len(self._buffer)

    def rest(self) -> bytes:
        """Return the last line when no newline ended it."""
        rest = b"" if self._skipping else bytes(self._buffer)
        self._buffer.clear()
        self._searched = 0
        return rest


class LineParser:
    """A format of one JSON object a line. A subclass reads events in `_take`; the verdict is made here."""

    def __init__(self) -> None:
        self._lines = Lines()
        self._began = False
        self._spoke = False
        self._session = ""
        self._final = False
        self._failure = ""
        self._status: int | None = None
        self._hint = ""
        """What the command complained of without ending: told only where no final event says better."""
        self._usage: Usage | None = None
        self._finish_reason = "stop"

    @property
    def began(self) -> bool:
        return self._began

    @property
    def final(self) -> bool:
        return self._final or bool(self._failure)

    def feed(self, data: bytes) -> list[Event]:
        events: list[Event] = []
        for line in self._lines.feed(data):
            events.extend(self._line(line))
        return events

    def finish(self, exit_code: int) -> tuple[list[Event], Verdict]:
        events = list(self._line(self._lines.rest()))
        return events, self._verdict(exit_code)

    def _line(self, line: bytes) -> Iterator[Event]:
        event = decode_object(line)
        kind = text_at(event, "type")
        if kind:
            yield from self._take(kind, event)

    def _take(self, kind: str, event: Json) -> Iterator[Event]:
        """Read one event of the format; set `_began` for the types that it knows."""
        raise NotImplementedError

    def _named(self, session_id: str) -> Iterator[Event]:
        """Say the session's name, once."""
        if session_id and session_id != self._session:
            self._session = session_id
            yield Session(session_id)

    def _say(self, text: str, *, new: bool) -> Iterator[Event]:
        """Say a piece of the answer; a `new` message stands apart from the one before."""
        if text:
            yield Text(f"\n\n{text}" if new and self._spoke else text)
            self._spoke = True

    def _fail(self, message: str, status: int | None = None) -> None:
        """The run's own word that it failed; the first one stands."""
        if not self._failure:
            self._failure = message.strip()[:_MESSAGE_MAX] or "the command reported an error without a message"
            self._status = status

    def _verdict(self, exit_code: int) -> Verdict:
        if self._failure:
            return Verdict(False, self._failure, self._status, self._usage, told=True)
        if not self._final:
            why = f"; its last complaint: {self._hint[:_MESSAGE_MAX]}" if self._hint else ""
            dropped = f"; {self._lines.dropped} lines were too long to read" if self._lines.dropped else ""
            return Verdict(False, f"no final event; {exit_words(exit_code)}{why}{dropped}", None, self._usage)
        if exit_code != 0:
            return Verdict(False, f"it said that all went well, but {exit_words(exit_code)}", None, self._usage)
        return Verdict(True, usage=self._usage, finish_reason=self._finish_reason)


def exit_words(exit_code: int) -> str:
    """Say an exit code in words, a signal by its number."""
    return f"it was ended by signal {-exit_code}" if exit_code < 0 else f"it exited with code {exit_code}"


def decode_object(line: bytes) -> Json:
    """Return the JSON object on a line; an empty one for whatever else stands there."""
    line = line.strip()
    if not line.startswith(b"{"):
        return {}
    try:
        return msgspec.json.decode(line, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:  # one byte that is no UTF-8, in a file's content say, must not cost the whole event
        return msgspec.json.decode(line.decode("utf-8", "replace"), type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return {}


def object_at(event: object, *keys: str) -> Json:
    """Return the object under these keys, one below the other; an empty one where there is none."""
    for key in keys:
        event = event.get(key) if isinstance(event, dict) else None
    return event if isinstance(event, dict) else {}


def objects_at(event: Json, key: str) -> list[Json]:
    """Return the objects of a list; an empty one where there is none."""
    found = event.get(key)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def text_at(event: Json, key: str) -> str:
    """Return a text; an empty one where there is none."""
    found = event.get(key)
    return found if isinstance(found, str) else ""


def count_at(event: Json, key: str) -> int:
    """Return a count of tokens; 0 where there is none."""
    found = event.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found < 2**53 else 0


def status_at(event: Json, key: str) -> int | None:
    """Return an HTTP status of an error; None where there is none."""
    found = count_at(event, key)
    return found if 400 <= found <= 599 else None
