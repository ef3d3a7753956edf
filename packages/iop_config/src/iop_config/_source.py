"""Text to nodes with their places, through ruamel.yaml's parser events; nothing else imports ruamel.yaml (C18)."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from iop_config._nodes import BROKEN, LIST, MAP, SCALAR, File, Node, Report, make_problem, name_members
from iop_config._problems import ConfigPath, Problem
from iop_config._syntax import Mistake, reword, tab_outside_of_texts, unreadable

Events = Callable[[], Any]  # the next event, or None


def _c_parser() -> Callable[[bytes], Any] | None:
    """Return the C parser, or None on a platform without: the pure one gives the same nodes, ten times slower."""
    try:
        parser: Callable[[bytes], Any] = importlib.import_module("_ruamel_yaml").CParser
    except ImportError:
        return None
    return parser


_C_PARSER = _c_parser()

SIZE_MAX = 16 * 2**20  # bytes of a file
DEPTH_MAX = 32
LAST_WORD_MAX = 64 * 2**10  # up to here the pure parser, whose grammar is YAML 1.2, has the last word on a mistake
FOUND_MAX = 1000  # mistakes of the writing that are told of one file: nobody reads more, and a file can be made of them
EXPANDED_MAX = 200_000  # nodes that aliases may add: a bomb is small on paper

_NOT_A_KEY = re.compile(
    r"~|null|Null|NULL|true|True|TRUE|false|False|FALSE|[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"
    r"|[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)|"
)

# libyaml's old grammar ends a plain text inside [ ] and { } at any ':' or '?'; YAML 1.2 does not. Where it stumbles,
# the same text is read again with those two replaced by characters that mean nothing, and put back into the values.
_PLAIN_COLON = re.compile(r":(?<=[^\]}\"'\\]:)(?=[^\s\[\]{},])")
_PLAIN_QUESTION = re.compile(r"\?(?<=[^\s\[\]{},\"'\\]\?)")


def parse(data: bytes, file: File, report: Report, *, pure: bool = False) -> Node | None:
    """Return the root of a YAML text, or None after a problem that makes the rest unreadable.

    Problems go to `report`; their words never quote the text (C23).
    """
    text = _decode(data, file, report)
    if text is None:
        return None
    if _C_PARSER is None or pure:
        return _with_engine(_pure_events(text), text, file, report)
    try:
        return _Composer(_c_events(data), text, file, report).compose()
    except MarkedYAMLError:
        pass
    colon, question = _unused(text)
    masked = _PLAIN_QUESTION.sub(question, _PLAIN_COLON.sub(colon, text))
    try:
        return _Composer(_c_events(masked.encode()), text, file, report, {colon: ":", question: "?"}).compose()
    except MarkedYAMLError as error:
        if len(text) > LAST_WORD_MAX:
            return _give_up(error, text, file, report)
    return _with_engine(_pure_events(text), text, file, report)


def _decode(data: bytes, file: File, report: Report) -> str | None:
    """Return the text of a file, or None and a problem where it is no clean UTF-8 text."""
    mistake: Mistake | None = None
    text = ""
    if len(data) > SIZE_MAX:
        mistake = Mistake(0, 0, "C18.too-large", f"the file has {len(data)} bytes", f"at most {SIZE_MAX} are read")
    else:
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            before = data[: error.start].decode("utf-8")
            line, column = before.count("\n"), len(before) - before.rfind("\n") - 1
            mistake = Mistake(line, column, "C18.encoding", "this byte is not UTF-8 text", "save the file as UTF-8")
            if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
                mistake = Mistake(0, 0, "C18.encoding", "the file is UTF-16", "save it as UTF-8")
        else:
            text = text.removeprefix("\ufeff")
            mistake = unreadable(text)
    if mistake is None:
        return text
    report.problems.append(_problem(mistake, file))
    return None


def _with_engine(events: Events, text: str, file: File, report: Report) -> Node | None:
    try:
        return _Composer(events, text, file, report).compose()
    except MarkedYAMLError as error:
        return _give_up(error, text, file, report)


def _give_up(error: MarkedYAMLError, text: str, file: File, report: Report) -> Node | None:
    report.problems.append(_problem(reword(error, text), file))
    return None


def _problem(mistake: Mistake, file: File) -> Problem:
    node = Node(SCALAR, "", file, mistake.line, mistake.column)
    return make_problem(mistake.code, (), mistake.message, mistake.suggestion, node=node)


def _c_events(data: bytes) -> Events:
    assert _C_PARSER is not None
    events: Events = _C_PARSER(data).get_event
    return events


def _pure_events(text: str) -> Events:
    stream = YAML(typ="safe", pure=True).parse(text)
    return lambda: next(stream, None)


def _unused(text: str) -> tuple[str, str]:
    """Return two characters that the text does not have; there are more private ones than a config could use."""
    free = (chr(code) for code in range(0xE000, 0xF900) if chr(code) not in text)
    return next(free), next(free)


class _StopError(Exception):
    """The rest of the file is not worth reading; the reason was reported."""


class _Composer:
    """Builds the nodes of one document from its events: one pass, no recursion."""

    def __init__(
        self, events: Events, text: str, file: File, report: Report, masks: dict[str, str] | None = None
    ) -> None:
        self._next = events
        self._text = text
        self._file = file
        self._report = report
        self._masks = str.maketrans(masks) if masks else None
        self._found: list[tuple[ConfigPath, str, str, str, Node, bool]] = []
        self._anchors: dict[str, Node] = {}
        self._tagged: dict[int, Node] = {}
        self._texts: list[tuple[int, int, int, int]] | None = [] if "\t" in text else None
        self._expanded = 0
        self._open: list[Node] = []
        self._steps: list[str | int] = []  # how each open container but the first hangs on the one before
        self._keys: set[str] = set()  # keys that are known to be texts

    def compose(self) -> Node | None:
        """Return the root, or None after a problem that makes the file unreadable.

        Where the engine cannot go on, its MarkedYAMLError passes through and nothing is reported.
        """
        try:
            root = self._document()
            stopped = False
        except _StopError:
            root, stopped = None, True
        for node in self._tagged.values():
            node.kind = BROKEN
        for path, code, message, suggestion, node, key in self._found:
            path = path if root is None else name_members(root, path)
            self._report.broken.add(path)
            self._report.add(code, path, message, suggestion, node=node, key=key)
        if stopped:
            return None
        if self._texts is not None:
            mistake = tab_outside_of_texts(self._text, self._texts)
            if mistake is not None:
                self._report.problems.append(_problem(mistake, self._file))
                return None
        return root or Node(SCALAR, "", self._file, 0, 0, True)

    def _document(self) -> Node | None:
        file, next_event, masks, texts = self._file, self._next, self._masks, self._texts
        opened, steps = self._open, self._steps
        root: Node | None = None
        container: Node | None = None
        key: Node | None = None  # the key that waits for its value
        count = 0
        seen = False
        while (event := next_event()) is not None:
            kind = type(event)
            if texts and texts[-1][2] < 0:  # a block text reaches as far as what follows it
                texts[-1] = (*texts[-1][:2], event.start_mark.line, event.start_mark.column)
            if kind is ScalarEvent:
                mark = event.start_mark
                value = event.value if masks is None else event.value.translate(masks)
                node = Node(SCALAR, value, file, mark.line, mark.column, not event.style)
                count += 1
                if texts is not None and event.style:
                    end = event.end_mark
                    texts.append((mark.line, mark.column, -1 if event.style in "|>" else end.line, end.column))
            elif kind is MappingStartEvent:
                mark = event.start_mark
                node = Node(MAP, {}, file, mark.line, mark.column)
            elif kind is SequenceStartEvent:
                mark = event.start_mark
                node = Node(LIST, [], file, mark.line, mark.column)
            elif kind is AliasEvent:
                mark = event.start_mark
                node = self._alias(event.anchor, mark.line, mark.column, _step(container, key))
                count += node.size
            elif kind is MappingEndEvent or kind is SequenceEndEvent:
                assert container is not None
                if kind is MappingEndEvent and "<<" in container.entries:
                    self._merge(container)
                container.size = count - container.size
                opened.pop()
                container = opened[-1] if opened else None
                if steps:
                    steps.pop()
                continue
            elif kind is DocumentStartEvent:
                if seen:
                    place = Node(SCALAR, "", file, event.start_mark.line, event.start_mark.column)
                    self._stop(
                        "C18.second-document", place, "a second document begins here", "one file is one document"
                    )
                seen = True
                continue
            else:
                continue

            if kind is not AliasEvent:
                if event.anchor is not None:
                    self._anchor(event.anchor, node, _step(container, key))
                if event.ctag is not None:
                    self._say(
                        "C18.tag", node, "a tag (!…) is not accepted", "write the value alone", _step(container, key)
                    )
                    self._tagged[id(node)] = node
            if container is None:
                root = node
            elif container.kind == LIST:
                container.items.append(node)
            elif key is None:
                if kind is not ScalarEvent:
                    self._stop("C18.key", node, "a key must be a text", "write it out")
                key = node
                if node.text not in self._keys:
                    self._check_key(node)
                continue
            else:
                node.key_line, node.key_column = key.line, key.column
                name = key.text
                if container.entries.setdefault(name, node) is not node:
                    self._duplicate(container.entries[name], name, node)
                elif name == "<<" and key.plain:
                    node.spelling = "<<"
            if kind is MappingStartEvent or kind is SequenceStartEvent:
                if container is not None:
                    steps.append(len(container.items) - 1 if key is None else key.text)
                if len(opened) >= DEPTH_MAX:
                    self._stop("C18.too-deep", node, f"nested deeper than {DEPTH_MAX} levels", "make it flatter")
                opened.append(node)
                count += 1
                node.size = count - 1
                container = node
            key = None
        return root

    def _say(
        self, code: str, node: Node, message: str, suggestion: str, below: ConfigPath = (), *, key: bool = False
    ) -> None:
        if len(self._found) < FOUND_MAX:
            self._found.append(((*self._steps, *below), code, message, suggestion, node, key))

    def _stop(self, code: str, node: Node, message: str, suggestion: str, below: ConfigPath = ()) -> NoReturn:
        self._say(code, node, message, suggestion, below)
        raise _StopError

    def _check_key(self, node: Node) -> None:
        if node.plain and _NOT_A_KEY.fullmatch(node.text):
            self._say(
                "C18.key", node, "a number, a boolean or nothing stands where a key is asked", "quote it", (node.text,)
            )
        else:
            self._keys.add(node.text)

    def _duplicate(self, first: Node, name: str, node: Node) -> None:
        self._say(
            "C18.duplicate-key",
            node,
            f"this key stands here twice; it was first given at {first.key_place}",
            "remove one of them",
            (name,),
            key=True,
        )

    def _anchor(self, name: str, node: Node, below: ConfigPath) -> None:
        first = self._anchors.get(name)
        if first is None:
            self._anchors[name] = node
        else:
            self._say(
                "C18.anchor",
                node,
                f"this anchor's name was given before, at {first.place}",
                "give it another name",
                below,
            )

    def _alias(self, name: str, line: int, column: int, below: ConfigPath) -> Node:
        """Return what an alias stands for, as a node at the alias's place."""
        target = self._anchors.get(name)
        place = Node(BROKEN, "", self._file, line, column)
        if target is None:
            self._say(
                "C18.alias", place, "no anchor of this name stands before this alias", "define it before its use", below
            )
            return place
        if any(target is container for container in self._open):
            self._say(
                "C18.alias", place, "this alias stands inside of what it stands for", "write the value out", below
            )
            return place
        self._expanded += target.size
        if self._expanded > EXPANDED_MAX:
            self._stop(
                "C18.too-many-nodes",
                place,
                f"aliases add more than {EXPANDED_MAX} values",
                "write fewer aliases",
                below,
            )
        place.kind, place.value, place.plain, place.size = target.kind, target.value, target.plain, target.size
        place.origin = target.origin or target
        if id(target) in self._tagged:
            self._tagged[id(place)] = place
        return place

    def _merge(self, container: Node) -> None:
        """Put the entries that `<<` names behind the container's own; what stands first wins."""
        entries = container.entries
        source = entries["<<"]
        if source.spelling != "<<":
            return  # quoted: a key like any other
        del entries["<<"]
        for each in source.items if source.kind == LIST else [source]:
            if each.kind != MAP:
                if each.kind != BROKEN:
                    self._say("C18.merge", each, "`<<` takes a mapping, or a list of mappings", "name an anchor of one")
                continue
            site = each if each.origin is not None else source
            for key, child in each.entries.items():
                if key in entries:
                    continue
                if site.origin is not None:
                    definition, child = (
                        child,
                        Node(child.kind, child.value, child.file, site.line, site.column, child.plain),
                    )
                    child.size, child.origin = definition.size, definition.origin or definition
                entries[key] = child


def _step(container: Node | None, key: Node | None) -> ConfigPath:
    """Return how the value that comes next hangs on its container."""
    if container is None:
        return ()
    if container.kind == LIST:
        return (len(container.items),)
    return (key.text,) if key is not None else ()
