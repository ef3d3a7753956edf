"""`gemini-stream-json`: what Gemini CLI prints with `-o stream-json`; it exits with an error's status mod 256."""

from __future__ import annotations

from collections.abc import Iterator

from iop_node.adapters.cli_formats.base import (
    Event,
    Json,
    LineParser,
    Verdict,
    count_at,
    object_at,
    status_at,
    text_at,
)
from iop_node.link import Usage

__all__ = ["GeminiStreamParser"]

_STATUS_BY_EXIT = {status % 256: status for status in (400, 401, 403, 404, 408, 413, 429, 500, 502, 503, 504)}
_EXITS = {
    41: "not logged in (exit code 41)",
    42: "it refused its input or the session to resume (exit code 42)",
    52: "its settings are wrong (exit code 52)",
    55: "it does not trust its working folder (exit code 55); GEMINI_CLI_TRUST_WORKSPACE=true in `env` lets it",
    130: "it was interrupted (exit code 130)",
}


class GeminiStreamParser(LineParser):
    """Interrupted by a signal it exits with 0 and without `result`, which is an error like every missing end."""

    def __init__(self) -> None:
        super().__init__()
        self._new = False

    def _take(self, kind: str, event: Json) -> Iterator[Event]:
        self._began = self._began or kind in ("init", "message", "tool_use", "tool_result", "error", "result")
        match kind:
            case "init":
                yield from self._named(text_at(event, "session_id"))
            case "message" if text_at(event, "role") == "assistant":
                yield from self._say(text_at(event, "content"), new=self._new or event.get("delta") is not True)
                self._new = False
            case "tool_use" | "tool_result":
                self._new = True
            case "error":
                self._hint = text_at(event, "message")
            case "result":
                self._result(event)

    def _result(self, event: Json) -> None:
        stats = object_at(event, "stats")
        if stats:
            self._usage = Usage(
                count_at(stats, "input_tokens"),
                count_at(stats, "output_tokens"),
                count_at(stats, "cached") or count_at(stats, "cached_input_tokens"),
                from_runtime=True,
            )
        if text_at(event, "status") == "success":
            self._final = True
            return
        error = object_at(event, "error")
        self._fail(text_at(error, "message") or self._hint, status_at(error, "code"))

    def _verdict(self, exit_code: int) -> Verdict:
        if self._failure and self._status is None:
            self._status = _STATUS_BY_EXIT.get(exit_code)
        if not self._failure and not self._final and exit_code in _EXITS:
            hint = f": {self._hint}" if self._hint else ""
            self._fail(_EXITS[exit_code] + hint, 401 if exit_code == 41 else None)
        return super()._verdict(exit_code)
