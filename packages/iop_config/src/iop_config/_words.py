"""Words and codes for problems of shape: the likely key, the likely choice, the nearest rule (C18, C19)."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from iop_config._fields import ConfigObject, FieldInfo, Format
from iop_config._model import (
    AdapterConfig,
    EdgeConfig,
    ModelConfig,
    ModelRoute,
    NodeConfig,
    PrincipalToken,
    ProviderConfig,
)
from iop_config._nodes import SCALAR, Node
from iop_config._problems import ConfigPath, quoted
from iop_config._values import Secret

Words = tuple[str, str, str]  # code, what is wrong, what would be right

_CLOSE = 0.6
_RAW_NAMES = ("token", "api_key", "key", "secret")
_RAW_TOKENS: dict[type[ConfigObject], tuple[str, str]] = {
    PrincipalToken: ("C14.raw-token", "token new"),
    NodeConfig: ("C25.raw-token", "node add"),
}


def unknown_key_problem(
    cls: type[ConfigObject], parents: list[type[ConfigObject]], key: str
) -> tuple[str, str, str, str]:
    """Say that a class has no such key, and which one was likely meant: its own, or one a level up or down.

    The last of the four is the field of the class that was meant, or an empty text.
    """
    raw = _RAW_TOKENS.get(cls)
    if raw is not None and key in _RAW_NAMES:
        code, command = raw
        right = f"write its hash as token_hash_sha256; `iop-edge {command}` makes both"
        return code, "a raw token is never accepted in the file", right, "token_hash_sha256"
    code = "C18.unknown-key"
    if key == "<<":
        return code, "a quoted << merges nothing", "write it without quotes", ""
    for parent in reversed(parents):
        if key in _keys(parent):
            return code, f"this key belongs to {_name(parent)}", "move it there", ""
    own = list(_keys(cls))
    close = get_close_matches(key, own, 1, _CLOSE)
    if close:
        return code, "unknown key", f'did you mean "{close[0]}"?', close[0]
    for name, info in cls.__fields__.items():
        if info.item is not None and key in _keys(info.item):
            return code, f'this key belongs to "{name}"', "move it there", ""
    close = get_close_matches(key, [name for parent in parents for name in _keys(parent)], 1, _CLOSE)
    if close:
        return code, "unknown key", f'did you mean "{close[0]}", which stands a level up?', ""
    return code, "unknown key", f"known here: {quoted(own)}", ""


def _keys(cls: type[ConfigObject]) -> Iterable[str]:
    """Return the keys that may stand in a class's mapping, the older names among them."""
    keys = [name for name, info in cls.__fields__.items() if not info.internal]
    if cls is ProviderConfig:
        keys += [name for name, info in AdapterConfig.__fields__.items() if info.provider_first and name not in keys]
    return [*keys, *(old for info in AdapterConfig.__fields__.values() for old in info.aliases if info.name in keys)]


def _name(cls: type[ConfigObject]) -> str:
    """Return where a class stands in the file, as its docstring begins."""
    if cls is EdgeConfig:
        return "the top of the file"
    return (cls.__doc__ or "").partition(":")[0].strip().strip("`")


def missing_problem(cls: type[ConfigObject], info: FieldInfo) -> Words:
    """Say that a required key was not written."""
    if cls is ProviderConfig and info.name == "category":
        code = "C6.missing"
    elif info.name == "token_hash_sha256":
        code = "C14.missing" if cls is PrincipalToken else "C25.missing"
    else:
        code = "C18.missing"
    what = f"one of {quoted(info.choices)}" if info.choices else info.doc[0].lower() + info.doc[1:].rstrip(".")
    return code, f'the key "{info.name}" is missing', f"add it: {what}"


def choice_problem(info: FieldInfo, node: Node) -> Words:
    """Say that a text is none of a field's choices; it is quoted only where it is nearly one of them (C23)."""
    code = {"category": "C6.unknown-category", "type": "C9.unknown-type"}.get(info.name, "C18.choice")
    known = quoted(info.choices)
    if node.kind == SCALAR and not isinstance(node.value, Secret):
        close = get_close_matches(node.text.lower(), info.choices, 1, _CLOSE)
        if close:
            return code, f"unknown {info.name}", f'did you mean "{close[0]}"? known: {known}'
    return code, f"unknown {info.name}", f"one of {known}"


def duplicate_code(info: FieldInfo) -> str:
    """Return the code of an identity that stands twice in a collection."""
    if info.item is ModelConfig:
        return "C3.duplicate-model"
    if info.item is PrincipalToken:
        return "C14.duplicate-token-ref"
    if info.item is ModelRoute:
        return "C16.duplicate-route"
    if info.item is NodeConfig:
        return "C5.duplicate-node"
    return "C5.duplicate-adapter" if info.item is AdapterConfig else "C5.duplicate-provider"


def bound_code(path: ConfigPath) -> str:
    """Return the code of a number out of its bounds."""
    return "C13.bound" if path[:1] == ("models",) else "C11.bound"


def format_code(wanted: Format, path: ConfigPath) -> str:
    """Return the code of a text that does not look as asked."""
    if wanted is Format.SHA256:
        return "C14.hash" if "principal_tokens" in path else "C25.hash"
    if wanted is Format.ADDRESS:
        return "C25.address"
    if wanted is Format.URL:
        return "C25.url"
    if "principal_tokens" in path:
        return "C14.name"
    return "C18.format"
