"""Any config that can be written loads and keeps its version; any one mutation of it is told at its place (C18-C21)."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import iop_config
from iop_config import ConfigError, Loaded, Problem
from support.config_gen import Path, Plain, Text, configs, emit, get, paths
from support.rules import rule

KEY = b"k" * 32
IDENTITIES = {"id", "name", "token_ref"}
WORDS: list[Any] = [None, True, -1, 0, 1.5, 10**30, "", "nope", "1", [], {}, ["x"], {"x": 1}]


def load(text: str) -> Loaded:
    return iop_config.load_text(text, env={}, digest_key=KEY)


def problems(text: str) -> tuple[Problem, ...]:
    try:
        load(text)
    except ConfigError as error:
        return error.problems
    return ()


def shuffled(value: object, draw: st.DataObject, key: str = "") -> Any:
    """The same config in another order of keys and members; that of a model's providers and of argv means something."""
    if isinstance(value, dict):
        names = list(value) if key == "providers" else draw.draw(st.permutations(list(value)))
        return {name: shuffled(value[name], draw, name) for name in names}
    if isinstance(value, list):
        members = [shuffled(member, draw) for member in value]
        return draw.draw(st.permutations(members)) if key in ("nodes", "adapters", "models") else members
    return value


@rule("C18", "C19", "C21")
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(configs())
def test_it_loads_and_what_is_shown_loads_to_the_same(config: Plain) -> None:
    first = load(emit(config).text)
    shown = iop_config.to_yaml(iop_config.to_plain(first.config))
    again = load(shown)
    assert again.config == first.config
    assert again.version == first.version
    assert iop_config.to_yaml(iop_config.to_plain(again.config)) == shown


@rule("C21", "R10")
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(configs(), st.data())
def test_another_order_is_the_same_config(config: Plain, draw: st.DataObject) -> None:
    assert load(emit(shuffled(config, draw)).text).version == load(emit(config).text).version


@rule("C19")
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(configs(), st.data())
def test_one_mutation_is_another_config_or_a_problem_at_its_place(config: Plain, draw: st.DataObject) -> None:
    before = load(emit(config).text)
    path = draw.draw(st.sampled_from(sorted(paths(config), key=str)))
    text, place = mutate(config, path, draw)
    found = problems(text.text)
    if not found:
        after = load(text.text)
        assert iop_config.config_version(after.config, KEY) == after.version
        assert (after.version == before.version) == (after.config == before.config)
        return
    assert all(1 <= problem.line <= text.text.count("\n") and problem.column >= 1 for problem in found)
    if (
        path[-1] in IDENTITIES
        or isinstance(path[-1], int)
        or any(isinstance(key, int) and len(path) == 2 for key in path)
    ):
        return  # what names it, or what it named, may be the one that is told
    first, last = text.lines[place]
    names = {word for word in map(str, path) if word}
    assert any(
        first <= problem.line <= last or names & set(problem.path.replace("]", "").replace("[", ".").split("."))
        for problem in found
    ), (path, found)


def mutate(config: Plain, path: Path, draw: st.DataObject) -> tuple[Text, Path]:
    """Delete, retype, rename, or write twice what is at a path; the text, and the path to expect a problem in."""
    changed = copy.deepcopy(config)
    parent, key = get(changed, path[:-1]), path[-1]
    kind = draw.draw(st.sampled_from(["delete", "retype", "rename", "twice"]))
    if kind == "delete":
        del parent[key]
        return emit(changed), path[:-1]
    if kind == "retype":
        word = draw.draw(st.sampled_from(WORDS))
        assume(word != parent[key] or type(word) is not type(parent[key]))
        parent[key] = word
        return emit(changed), path
    assume(isinstance(parent, dict))
    if kind == "rename":
        items = list(parent.items())
        parent.clear()
        parent.update((f"{name}x" if name == key else name, value) for name, value in items)
        return emit(changed), path[:-1]
    return emit(changed, twice=path), path[:-1]
