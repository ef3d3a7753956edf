"""The output formats of the `cli` adapter, each a parser without I/O: stdout in, events and a verdict out (N9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from iop_node.adapters.cli_formats.base import Event, OutputParser, Reasoning, Session, Text, Verdict
from iop_node.adapters.cli_formats.claude import ClaudeStreamParser
from iop_node.adapters.cli_formats.codex import CodexParser
from iop_node.adapters.cli_formats.gemini import GeminiStreamParser
from iop_node.adapters.cli_formats.opencode import OpencodeParser
from iop_node.adapters.cli_formats.plain import JsonlParser, TextParser

__all__ = ["FORMATS", "Event", "OutputParser", "Reasoning", "Session", "Text", "Verdict"]

FORMATS: Mapping[str, Callable[[], OutputParser]] = {
    "text": TextParser,
    "jsonl": JsonlParser,
    "claude-stream-json": ClaudeStreamParser,
    "codex-jsonl": CodexParser,
    "gemini-stream-json": GeminiStreamParser,
    "opencode-json": OpencodeParser,
}
"""`output_format` → a new parser for one run."""
