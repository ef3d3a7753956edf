"""What the parser's complaints mean, in our own words: from problem and place, never from the text (C18, C23)."""

from __future__ import annotations

import re
from bisect import bisect_right

import attrs


@attrs.frozen
class Mistake:
    """A problem of the text itself; line and column count from 0."""

    line: int
    column: int
    code: str
    message: str
    suggestion: str


_BREAK = re.compile(r"\r\n|\r|\n")
_DIRECTIVE = re.compile(r"(?:[ \t]*(?:#[^\r\n]*)?(?:\r\n|\r|\n))*%")
# What YAML engines treat differently, or not at all: controls, line separators beyond CR and LF, a BOM in the middle.
_UNREADABLE = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def unreadable(text: str) -> Mistake | None:
    """Return the first character that no config holds, or a directive."""
    found = _UNREADABLE.search(text)
    if found is not None:
        line, column = position(text, found.start())
        char = found.group()
        if char == "\ufeff":
            what, how = "a byte order mark inside of the text", "remove it"
        elif char == "\x00":
            what, how = "a NUL byte", "save the file as plain UTF-8 text"
        elif char in "\x85\u2028\u2029":
            what, how = f"the line separator U+{ord(char):04X}", "end lines with LF"
        else:
            what, how = f"the control character U+{ord(char):04X}", 'remove it, or write an escape such as "\\x1b"'
        return Mistake(line, column, "C18.character", what, how)
    directive = _DIRECTIVE.match(text)
    if directive is not None:
        line, column = position(text, directive.end() - 1)
        return Mistake(line, column, "C18.directive", "a directive (%…) is not accepted", "remove the line")
    return None


def position(text: str, offset: int) -> tuple[int, int]:
    """Return line and column of an offset."""
    line, start = 0, 0
    for found in _BREAK.finditer(text, 0, offset):
        line, start = line + 1, found.end()
    return line, offset - start


def tab_outside_of_texts(text: str, texts: list[tuple[int, int, int, int]]) -> Mistake | None:
    """Return the first tab that is neither in a comment nor in a quoted or block text (`texts`: their spans)."""
    starts = [span[:2] for span in texts]
    for number, line in enumerate(_BREAK.split(text)):
        if "\t" not in line:
            continue
        for found in re.finditer("\t", line):
            column = found.start()
            index = bisect_right(starts, (number, column)) - 1
            if index >= 0 and (number, column) < texts[index][2:]:
                continue
            if _in_comment(line, number, column, texts):
                break
            return _tab(number, column)
    return None


def _in_comment(line: str, number: int, column: int, texts: list[tuple[int, int, int, int]]) -> bool:
    for found in re.finditer(r"(?:^|(?<=[ \t]))#", line[:column]):
        place = (number, found.start())
        if not any(span[:2] <= place < span[2:] for span in texts):
            return True
    return False


def _tab(line: int, column: int) -> Mistake:
    return Mistake(line, column, "C18.tab", "a tab stands where only spaces may", "use spaces, or quote the text")


def reword(error: Exception, text: str) -> Mistake:
    """Return a parser's error as a mistake. Both engines come out equal (a test holds them to it)."""
    context = str(getattr(error, "context", None) or "")
    problem = str(getattr(error, "problem", None) or "")
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return Mistake(0, 0, "C18.syntax", "this is not YAML", "check the quoting and the indentation")
    opening = getattr(error, "context_mark", None) or mark
    lines = _BREAK.split(text)
    line, column = mark.line, mark.column
    rest = lines[line][column:] if line < len(lines) else ""
    char = rest[:1]
    if char == "\t" or "tab character" in problem:
        return _tab(line, column)
    if "quoted scalar" in context or "double-quoted" in context:
        if "escape" in problem or "hex" in problem:
            what, how = "an escape in this double-quoted text is unknown", "write \\\\ for a backslash"
        else:
            what, how = "this quoted text is never closed", "close the quote"
        return Mistake(opening.line, opening.column, "C18.syntax", what, how)
    if "flow" in context and "node" not in context:
        return _in_flow(lines, line, column, opening.line, opening.column)
    if "mapping values" in problem:
        return Mistake(
            line, column, "C18.syntax", "a key and a colon cannot stand here", "indent it, or quote the text"
        )
    if char and char in "@`%&*!|>" and "token" in problem:
        return Mistake(line, column, "C18.syntax", f"a value cannot begin with {char}", "quote it")
    if "simple key" in context:
        return Mistake(opening.line, opening.column, "C18.syntax", "a key without a colon", "write `key: value`")
    if "flow" in context and line >= len(lines) - 1 and not rest.strip():
        opened = _innermost_open(text)
        if opened is not None:
            bracket = lines[opened[0]][opened[1]]
            return Mistake(*opened, "C18.syntax", f"this {bracket} is never closed", "close it")
    if "node content" in problem:
        return Mistake(line, column, "C18.syntax", "a value is asked here", "write or quote it")
    if "block" in context:
        return Mistake(
            line, column, "C18.syntax", "this line does not fit the lines before it", "align it with its siblings"
        )
    if "document start" in problem:
        return Mistake(line, column, "C18.syntax", "the document had ended before this", "remove it")
    return Mistake(line, column, "C18.syntax", "this is not YAML", "check the quoting and the indentation here")


_BRACKETS = re.compile(
    r"""(?<![^\s\[\]{},:])(?:"(?:\\.|[^"\\])*"|'(?:''|[^'])*')|(?:^|(?<=\s))\#[^\r\n]*|[\[\]{}]""",
    re.DOTALL | re.MULTILINE,
)


def _innermost_open(text: str) -> tuple[int, int] | None:
    """Return the last bracket that the text leaves open: the engines point at the end of the file instead."""
    opened: list[int] = []
    for found in _BRACKETS.finditer(text):
        if found.group() in "[{":
            opened.append(found.start())
        elif found.group() in "]}" and opened:
            opened.pop()
    return position(text, opened[-1]) if opened else None


def _in_flow(lines: list[str], line: int, column: int, open_line: int, open_column: int) -> Mistake:
    here = lines[line] if line < len(lines) else ""
    if here[column : column + 1] == "{" and here[column - 1 : column] == "$":
        return Mistake(line, column - 1, "C18.syntax", "`${…}` inside [ ] or { } is not read as one text", "quote it")
    bracket = lines[open_line][open_column : open_column + 1]
    if line > open_line or not here[column:].strip():
        return Mistake(open_line, open_column, "C18.syntax", f"this {bracket} is never closed", "close it")
    return Mistake(line, column, "C18.syntax", "a comma or the closing bracket is asked here", "quote the text")
