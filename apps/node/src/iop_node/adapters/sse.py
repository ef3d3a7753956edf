"""Server-sent events, bytes in, whole events out: split where they end, cleaned of what breaks clients (E14)."""

from __future__ import annotations

from attrs import frozen

__all__ = ["Event", "EventSplitter", "TooLongError"]

_EVENT_MAX = 16 * 1024 * 1024


class TooLongError(Exception):
    """An event that never ends."""


@frozen
class Event:
    """One event with its data. `raw` is what is sent on: without comments, ids and retry times, `\\n` line ends."""

    raw: bytes
    data: bytes
    name: bytes = b""


class EventSplitter:
    """Cuts a stream of bytes into events, however the bytes arrive. Comments and events without data vanish."""

    def __init__(self) -> None:
        self._buffer = b""
        self._started = False

    def feed(self, data: bytes) -> list[Event]:
        """Take more bytes; return the events that are complete now. TooLongError: 16 MiB without an end."""
        buffer = self._buffer + data if self._buffer else data
        if not self._started and buffer:
            if buffer in (b"\xef", b"\xef\xbb"):
                self._buffer = buffer
                return []
            buffer = buffer.removeprefix(b"\xef\xbb\xbf")
            self._started = True
        tail = b""
        if b"\r" in buffer:
            if buffer.endswith(b"\r"):
                # The second half of a line end may still come.
                buffer, tail = buffer[:-1], b"\r"
            buffer = buffer.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *whole, rest = buffer.split(b"\n\n")
        self._buffer = rest + tail
        if len(self._buffer) > _EVENT_MAX:
            raise TooLongError
        return [event for block in whole if (event := _event(block)) is not None]

    @property
    def unfinished(self) -> bytes:
        """What came after the last complete event: not empty where a stream was cut inside one."""
        return self._buffer.strip(b"\r\n")


def _event(block: bytes) -> Event | None:
    # The common case: one `data:` line and nothing else goes on as it is.
    if block.startswith(b"data: ") and b"\n" not in block:
        data = block[6:]
        return Event(block + b"\n\n", data) if data.strip() else None
    kept: list[bytes] = []
    data_lines: list[bytes] = []
    name = b""
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data_lines.append(value)
        elif field == b"event":
            name = value
        else:
            continue  # comments, ids, retry times, unknown fields, and the line end of the event before
        kept.append(line)
    data = b"\n".join(data_lines)
    # Empty data breaks clients, and an event without any is not dispatched by them either (backends §0.5).
    return Event(b"\n".join(kept) + b"\n\n", data, name) if data.strip() else None
