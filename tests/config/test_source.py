"""Text to nodes: both engines give the same, places are exact, what YAML leaves open is decided (C18)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from iop_config._nodes import BROKEN, LIST, MAP, SCALAR, File, Node, Report
from iop_config._source import EXPANDED_MAX, SIZE_MAX, parse
from support.configs import problems
from support.rules import rule

FILE = File("edge.yaml", Path("."))


def plain(node: Node) -> object:
    if node.kind == MAP:
        return {key: plain(child) for key, child in node.entries.items()}
    if node.kind == LIST:
        return [plain(item) for item in node.items]
    return None if node.kind == BROKEN else node.text


def places(node: Node) -> list[tuple[str, int, int]]:
    if node.kind == MAP:
        return [("{", node.line, node.column)] + [place for child in node.entries.values() for place in places(child)]
    if node.kind == LIST:
        return [("[", node.line, node.column)] + [place for item in node.items for place in places(item)]
    return [("?" if node.kind == BROKEN else node.text, node.line, node.column)]


def read(text: str | bytes, *, pure: bool = False) -> tuple[object, list[str]]:
    """The data, or None, and the problems as `line:column code`."""
    report = Report()
    root = parse(text.encode() if isinstance(text, str) else text, FILE, report, pure=pure)
    found = [f"{problem.line}:{problem.column} {problem.code}" for problem in report.problems]
    return (None if root is None else plain(root)), found


def tree(text: str) -> Node:
    report = Report()
    root = parse(text.encode(), FILE, report)
    assert root is not None, report.problems
    assert not report.problems
    return root


READABLE = {
    "block and flow": ("a: 1\nb: [x, {c: d}]\n", {"a": "1", "b": ["x", {"c": "d"}]}),
    "all quotes": ("a: 'it''s'\nb: \"\\u00e9\\n\"\nc: |\n  x\n   y\nd: >-\n  x\n  y\n",
                   {"a": "it's", "b": "é\n", "c": "x\n y\n", "d": "x y"}),
    "address in flow": ("{listen: 127.0.0.1:19092, u: http://h/?a=b}", {"listen": "127.0.0.1:19092", "u": "http://h/?a=b"}),
    "colons in flow": ("[a::b, c:d, :e, {k: :v}]", ["a::b", "c:d", ":e", {"k": ":v"}]),
    "question mark in flow": ("[a?b, c?]", ["a?b", "c?"]),
    "no space after the colon in flow": ("{a:1}", {"a:1": ""}),
    "times and dates": ("a: 12:30:45\nb: 2001-01-01", {"a": "12:30:45", "b": "2001-01-01"}),
    "comments": ("# x\na: 1 # y\nb: c#d\n", {"a": "1", "b": "c#d"}),
    "document start": ("---\na: 1\n...\n", {"a": "1"}),
    "carriage returns": ("a: 1\r\nb:\r\n  - 2\r\n", {"a": "1", "b": ["2"]}),
    "byte order mark first": ("\ufeffa: 1", {"a": "1"}),
    "astral": ("😀: é😀\nb: {x: \"😀\", y: 2}\n", {"😀": "é😀", "b": {"x": "😀", "y": "2"}}),
    "private use characters": ("a: \ue000:\ue001x\nb: {c: d:\ue002}", {"a": "\ue000:\ue001x", "b": {"c": "d:\ue002"}}),
    "anchors": ("x: &x [1]\ny: *x\n", {"x": ["1"], "y": ["1"]}),
    "merge": ("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\n", {"x": {"a": "1", "b": "2"}, "y": {"b": "3", "a": "1"}}),
    "merge list": ("x: &x {a: 1}\ny: &y {a: 2, b: 2}\nz:\n  <<: [*x, *y]\n",
                   {"x": {"a": "1"}, "y": {"a": "2", "b": "2"}, "z": {"a": "1", "b": "2"}}),
    "quoted merge key is a key": ("y: {\"<<\": 1}", {"y": {"<<": "1"}}),
    "tabs in quotes, block texts and comments": ("a: \"x\ty\" # z\tz\nb: |\n  \tq\tq\n\nc: 'k\tk'\n#\t\n",
                                                 {"a": "x\ty", "b": "\tq\tq\n", "c": "k\tk"}),
    "empty": ("", ""),
    "only a comment": ("# nothing\n", ""),
}  # fmt: skip

UNREADABLE = {
    "unclosed double quote": ('a: 1\nb: "x\nc: 2\n', "2:4 C18.syntax"),
    "unclosed single quote": ("a: 'x\nb: y", "1:4 C18.syntax"),
    "unclosed list": ("a: 1\nb: [1, 2\n", "2:4 C18.syntax"),
    "unclosed list before a key": ("b: [1, 2\nc: 3\n", "1:4 C18.syntax"),
    "unclosed mapping": ("a: {b: 1\nc: 2", "1:4 C18.syntax"),
    "unquoted injection in a list": ("b: [${A}]\n", "1:5 C18.syntax"),
    "unquoted injection in a mapping": ("{k: ${V}}", "1:5 C18.syntax"),
    "two colons": ("a: b: c", "1:5 C18.syntax"),
    "too deep": ("a: 1\n b: 2\n", "2:3 C18.syntax"),
    "no colon": ("a\nb: c\n", "2:2 C18.syntax"),
    "at sign": ("a: @x", "1:4 C18.syntax"),
    "backtick": ("a: `x`", "1:4 C18.syntax"),
    "percent": ("a: %x", "1:4 C18.syntax"),
    "list then mapping": ("- a\n-b: c\n", "2:1 C18.syntax"),
    "block text dedented": ("a: |\n  x\n y\n", "3:2 C18.syntax"),
    "bad escape": ('a: "\\q"', "1:4 C18.syntax"),
    "bad hex escape": ('a: "\\xzz"', "1:4 C18.syntax"),
    "stray bracket": ("a: ]", "1:4 C18.syntax"),
    "text after the end": ("{a: 1}}", "1:7 C18.syntax"),
    "tab indent": ("a:\n\tb: 2\n", "2:1 C18.tab"),
    "tab first": ("\ta: 1", "1:1 C18.tab"),
    "tab after the colon": ("a: 1\nb:\t2\n", "2:3 C18.tab"),
    "tab inside of a plain text": ("a: b\tc\n", "1:5 C18.tab"),
    "tab before a comment": ("a: b\t# c\n", "1:5 C18.tab"),
    "directive": ("%YAML 1.1\n---\na: 1", "1:1 C18.directive"),
    "directive after a comment": ("# c\n%TAG ! x\n---\na: 1", "2:1 C18.directive"),
    "second document": ("--- a\n--- b\n", "2:1 C18.second-document"),
    "trailing document start": ("a: 1\n---\n", "2:1 C18.second-document"),
    "list as a key": ("[a, b]: c", "1:1 C18.key"),
    "mapping as a key": ("? {a: 1}\n: c", "1:3 C18.key"),
    "alias as a key": ("a: &x b\n*x : 1", "2:1 C18.key"),
    "33 levels": ("[" * 33 + "]" * 33, "1:33 C18.too-deep"),
    "1500 levels": ("{a: " * 1500 + "1" + "}" * 1500, "1:129 C18.too-deep"),
    "NUL": ("a: 1\nb: \x00", "2:4 C18.character"),
    "escape character": ("a: \x1b", "1:4 C18.character"),
    "next line": ("a: x\x85y", "1:5 C18.character"),
    "line separator": ("a: x\u2028y", "1:5 C18.character"),
    "byte order mark inside": ("a: \ufeff1", "1:4 C18.character"),
}

SOME_VALUES_BROKEN = {
    "duplicate key": ("a: 1\nb: 2\na: 3\n", {"a": "1", "b": "2"}, ["3:1 C18.duplicate-key"]),
    "duplicate deep": ("x:\n  - {a: 1, a: 2}\n", {"x": [{"a": "1"}]}, ["2:12 C18.duplicate-key"]),
    "two merges": ("x: &x {a: 1}\ny: {<<: *x, <<: *x}", {"x": {"a": "1"}, "y": {"a": "1"}}, ["2:13 C18.duplicate-key"]),
    "tag": ("a: !!int 3\nb: !x {c: 1}\nd: !!str\n", {"a": None, "b": None, "d": None},
            ["1:4 C18.tag", "2:4 C18.tag", "3:4 C18.tag"]),
    "non-specific tag": ("a: ! b", {"a": None}, ["1:4 C18.tag"]),
    "key that is a number": ("1: a\n2.5: b\n0x1: c", {"1": "a", "2.5": "b", "0x1": "c"},
                             ["1:1 C18.key", "2:1 C18.key", "3:1 C18.key"]),
    "key that is a boolean or nothing": ("true: a\n~: b\n? \n: c", {"true": "a", "~": "b", "": "c"},
                                         ["1:1 C18.key", "2:1 C18.key", "3:2 C18.key"]),
    "unknown alias": ("a: *x\n", {"a": None}, ["1:4 C18.alias"]),
    "alias of itself": ("a: &x [1, *x]\n", {"a": ["1", None]}, ["1:11 C18.alias"]),
    "anchor twice": ("a: &x 1\nb: &x 2\nc: *x\n", {"a": "1", "b": "2", "c": "1"}, ["2:4 C18.anchor"]),
    "merge of a text": ("a: {<<: b, c: d}", {"a": {"c": "d"}}, ["1:9 C18.merge"]),
}  # fmt: skip


@rule("C18")
@pytest.mark.parametrize("pure", [False, True], ids=["C", "pure"])
@pytest.mark.parametrize("case", READABLE)
def test_both_engines_read_what_is_well_formed(case: str, pure: bool) -> None:
    text, data = READABLE[case]
    assert read(text, pure=pure) == (data, [])


@rule("C18")
@pytest.mark.parametrize("case", READABLE)
def test_both_engines_agree_on_every_place(case: str) -> None:
    text, _ = READABLE[case]
    found = []
    for pure in (False, True):
        root = parse(text.encode(), FILE, Report(), pure=pure)
        assert root is not None
        found.append(places(root))
    assert found[0] == found[1]


@rule("C18", "C19")
@pytest.mark.parametrize("pure", [False, True], ids=["C", "pure"])
@pytest.mark.parametrize("case", UNREADABLE)
def test_both_engines_point_at_the_same_mistake(case: str, pure: bool) -> None:
    text, problem = UNREADABLE[case]
    assert read(text, pure=pure) == (None, [problem])


@rule("C18", "C19")
@pytest.mark.parametrize("case", UNREADABLE)
def test_both_engines_use_the_same_words(case: str) -> None:
    words = []
    for pure in (False, True):
        report = Report()
        parse(UNREADABLE[case][0].encode(), FILE, report, pure=pure)
        words.append(report.problems)
    assert words[0] == words[1]


@rule("C18")
@pytest.mark.parametrize("pure", [False, True], ids=["C", "pure"])
@pytest.mark.parametrize("case", SOME_VALUES_BROKEN)
def test_a_mistake_in_one_value_leaves_the_others(case: str, pure: bool) -> None:
    text, data, found = SOME_VALUES_BROKEN[case]
    assert read(text, pure=pure) == (data, found)


@rule("C18")
@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"a: 1\nb: \xff\n", "2:4 C18.encoding"),
        ("a: é".encode("latin-1"), "1:4 C18.encoding"),
        ("a: 1".encode("utf-16"), "1:1 C18.encoding"),
        (b"a: \xed\xa0\x80", "1:4 C18.encoding"),
        (b"a: 1\n" + b"#" * SIZE_MAX, "1:1 C18.too-large"),
    ],
)
def test_what_is_not_a_readable_file_is_said_at_its_byte(data: bytes, found: str) -> None:
    assert read(data) == (None, [found])


@rule("C18")
def test_a_bomb_of_aliases_is_stopped_by_what_it_expands_to() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    start = time.perf_counter()
    assert read("\n".join(lines)) == (None, ["6:15 C18.too-many-nodes"])
    assert time.perf_counter() - start < 0.5


@rule("C18")
def test_honest_aliases_up_to_the_budget_are_read() -> None:
    leaves = 100
    uses = EXPANDED_MAX // (leaves + 1)
    text = f"x: &x [{', '.join(['v'] * leaves)}]\ny:\n" + "  - *x\n" * uses
    data, found = read(text)
    assert not found
    assert isinstance(data, dict)
    assert len(data["y"]) == uses
    assert read(text + "  - *x\n")[1] == [f"{uses + 3}:5 C18.too-many-nodes"]


@rule("C18")
def test_keys_and_values_know_their_own_place() -> None:
    node = tree("a:\n  - bc: 'd'\n").entries["a"].items[0].entries["bc"]
    assert (node.kind, node.text, node.plain) == (SCALAR, "d", False)
    assert (node.key_place, node.place) == ("edge.yaml:2:5", "edge.yaml:2:9")


@rule("C18")
def test_an_alias_stands_at_its_use_and_knows_its_definition() -> None:
    root = tree("x: &x {a: 1}\ny: *x\nz:\n  <<: *x\n")
    alias = root.entries["y"]
    assert alias.origin is not None
    assert (alias.place, alias.origin.place) == ("edge.yaml:2:4", "edge.yaml:1:4")
    merged = root.entries["z"].entries["a"]
    assert merged.origin is not None
    assert (merged.place, merged.origin.place) == ("edge.yaml:4:7", "edge.yaml:1:11")


@rule("C18")
def test_a_large_mistaken_file_is_not_read_by_the_slow_engine() -> None:
    text = "a:\n" + "  - {b: 127.0.0.1:80, c: d}\n" * 20_000 + 'z: "'
    start = time.perf_counter()
    assert read(text) == (None, ["20002:4 C18.syntax"])
    assert time.perf_counter() - start < 3


@rule("C18", "C19")
def test_of_a_file_that_is_made_of_mistakes_the_first_thousand_are_told() -> None:
    found = problems("edge: {id: e}\n" + "k: v\n" * 5000)
    duplicates = [problem for problem in found if problem.code == "C18.duplicate-key"]
    assert [problem.line for problem in duplicates] == list(range(3, 1003))
