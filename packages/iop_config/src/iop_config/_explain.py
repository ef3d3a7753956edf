"""What any field means: type, default, bounds, refresh policy, in words (R16); the reference page is made of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

import attrs

from iop_config._fields import ConfigObject, FieldInfo, Format, Policy, Shape
from iop_config._model import AdapterConfig, EdgeConfig, ProviderConfig
from iop_config._problems import quoted

POLICIES = {
    Policy.LIVE: "live: a refresh applies it while serving",
    Policy.RESTART: "restart: a refresh leaves it pending until the Edge is restarted",
    Policy.IDENTITY: "identity: another value is another object, one removed and one added",
    Policy.CONTAINER: "by its fields",
}
FORMATS = {
    Format.NAME: "1 to 256 characters, no control characters, no space at either end",
    Format.PATH: "a path",
    Format.ADDRESS: "host:port",
    Format.URL: "http(s)://host[:port][/path]",
    Format.SHA256: "64 hex digits",
    Format.HEADER: "an HTTP header's name",
    Format.HEADER_VALUE: "an HTTP header's value",
    Format.ENV_NAME: "the name of an environment variable",
    Format.ORIGIN: "scheme://host[:port], or *",
}
_STEP = re.compile(r"""\.?([\w-]+)((?:\[(?:"(?:\\.|[^"\\])*"|[^\]]*)\])*)""")


@attrs.frozen(kw_only=True)
class Entry:
    """One key of the file: where it stands and what is known about it."""

    path: str  # nodes[].providers[].capacity
    info: FieldInfo
    note: str = ""  # how an older or a shorter spelling is meant


def entries(cls: type[ConfigObject] = EdgeConfig, prefix: str = "") -> Iterator[Entry]:
    """Yield every key that the file may have, in its order; older and provider-first spellings have a note."""
    for info in cls.__fields__.values():
        if info.internal:
            continue
        path = f"{prefix}.{info.name}" if prefix else info.name
        yield Entry(path=path, info=info)
        for alias in info.aliases:
            yield Entry(path=f"{prefix}.{alias}", info=info, note=f"the older name of `{info.name}`")
        if info.item is not None:
            yield from entries(info.item, path + ("[]" if info.key else ""))
    if cls is ProviderConfig:
        yield from _provider_first(prefix)


def _provider_first(prefix: str) -> Iterator[Entry]:
    """The keys of C10: an adapter's own, on a provider without `adapter`."""
    for info in AdapterConfig.__fields__.values():
        if info.provider_first and info.name not in ProviderConfig.__fields__:
            note = "on a provider without `adapter`; it goes to the instance that is made from the provider"
            for name in (info.name, *info.aliases):
                yield Entry(path=f"{prefix}.{name}", info=info, note=note)


def explain(path: str) -> str:
    """Return what a field means: words, type, default, bounds and refresh policy, a few lines (R16).

    `path` is spelled as in problems and results, `nodes[gpu-1].providers[vllm-a].capacity`, or short,
    `nodes.providers.capacity`. Raises LookupError, with the likely path where there is one.
    """
    known = {entry.path.replace("[]", ""): entry for entry in entries()}
    short = _short(path)
    entry = known.get(short)
    if entry is None:  # the key of a mapping of texts: models[m].providers.vllm-a
        parent = known.get(short.rpartition(".")[0])
        if parent is not None and parent.info.shape is Shape.MAP:
            entry = parent
    if entry is None:
        raise LookupError(_unknown(path, short, known))
    lines = [entry.path, f"  {entry.info.doc}"]
    if entry.note:
        lines.append(f"  ({entry.note})")
    lines.append("")
    lines += [f"  {name:<9}{text}" for name, text in facts(entry.info) if text]
    if entry.info.item is not None:
        lines += ["", "  keys: " + ", ".join(_keys(entry, known))]
    return "\n".join(lines) + "\n"


def facts(info: FieldInfo) -> Iterator[tuple[str, str]]:
    """Yield what is known of a field as name and words; words may be empty."""
    yield "type", type_words(info)
    yield "default", "none: it is required" if info.required else info.default_text
    yield "bounds", info.bounds
    yield "one of", ", ".join(info.choices)
    form = FORMATS.get(info.format, "")
    if info.shape is Shape.MAP and info.key_format in FORMATS:
        form = f"keys: {FORMATS[info.key_format]}" + (f"; values: {form}" if form else "")
    yield "form", form
    yield "identity", f"`{info.key}`" if info.key else ""
    yield "refresh", policy_words(info)
    yield "secret", "its value is shown as <redacted> everywhere" if info.secret else ""


def type_words(info: FieldInfo) -> str:
    """Return the type in words."""
    return f"{info.shape.value}, in any order" if info.unordered else info.shape.value


def policy_words(info: FieldInfo) -> str:
    """Return what a refresh does with a change of the field, in words."""
    words = POLICIES[info.policy]
    if info.members_policy is Policy.LIVE:
        return f"{words}; adding or removing one is live"
    if info.members_policy is Policy.RESTART:
        return f"{words}; adding or removing one waits for a restart"
    return words


def _short(path: str) -> str:
    """A path without members: `nodes[gpu-1].alias` and `nodes.0.alias` are `nodes.alias`; unreadable ones stay."""
    found, end = [], 0
    text = path.strip()
    while match := _STEP.match(text, end):
        if not match[1].isdigit():
            found.append(match[1])
        end = match.end()
    return ".".join(found) if end == len(text) else text


def _keys(entry: Entry, known: dict[str, Entry]) -> list[str]:
    prefix = entry.path.replace("[]", "") + "."
    return [
        short.removeprefix(prefix) for short in known if short.startswith(prefix) and "." not in short[len(prefix) :]
    ]


def _unknown(path: str, short: str, known: dict[str, Entry]) -> str:
    """The words for a path that is not there: the likeliest one, by the whole path or by its last part."""
    near = difflib.get_close_matches(short, known, 1, 0.75)
    if not near:
        last = short.rpartition(".")[2]
        tails = {name.rpartition(".")[2]: name for name in reversed(known)}
        near = [tails[tail] for tail in difflib.get_close_matches(last, tails, 1, 0.6)]
    shown = quoted([path if len(path) <= 200 else path[:200] + "…"])
    if not near:
        return f"no config field {shown}; the sections are {', '.join(EdgeConfig.__fields__)}"
    return f"no config field {shown}; did you mean {known[near[0]].path}?"


__all__ = ["explain"]
