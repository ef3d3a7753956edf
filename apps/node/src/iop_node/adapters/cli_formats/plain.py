"""The two formats for any command: `text`, where stdout is the answer, and `jsonl`, IOP's own for a user's script."""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from iop_node.adapters.cli_formats.base import (
    Event,
    Json,
    LineParser,
    Text,
    Verdict,
    count_at,
    exit_words,
    status_at,
    text_at,
)
from iop_node.link import Usage

__all__ = ["JsonlParser", "TextParser"]


class TextParser:
    """All of stdout is the answer, without the line ends after it. The final event is the exit with code 0."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self._began = False

    @property
    def began(self) -> bool:
        return self._began

    @property
    def final(self) -> bool:
        return False  # only the exit tells

    def feed(self, data: bytes) -> list[Event]:
        return self._said(self._decoder.decode(data))

    def finish(self, exit_code: int) -> tuple[list[Event], Verdict]:
        events = self._said(self._decoder.decode(b"", final=True))
        if exit_code != 0:
            return events, Verdict(False, exit_words(exit_code))
        return events, Verdict(True)

    def _said(self, text: str) -> list[Event]:
        text = self._held + text
        said = text.rstrip("\r\n")
        self._held = text[len(said) :]  # only what comes after tells whether these end a line or the answer
        if not said:
            return []
        self._began = True
        return [Text(said)]


class JsonlParser(LineParser):
    """Objects with `type`: `text`, `usage`, `session`, `error`, and at the end `result`; other types are ignored."""

    def _take(self, kind: str, event: Json) -> Iterator[Event]:
        self._began = self._began or kind in ("text", "usage", "session", "error", "result")
        match kind:
            case "text":
                yield from self._say(text_at(event, "text"), new=False)
            case "usage":
                self._usage = Usage(
                    count_at(event, "input_tokens"), count_at(event, "output_tokens"), from_runtime=True
                )
            case "session":
                yield from self._named(text_at(event, "session_id"))
            case "error":
                self._fail(text_at(event, "message"), status_at(event, "status"))
            case "result":
                self._final = True
