"""The canonical form and its digest, the config version (C21); what may be shown, as plain data or YAML (C1, C23)."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence

from iop_config._fields import ConfigObject, FieldInfo, Shape
from iop_config._model import EdgeConfig
from iop_config._values import REDACTED, FrozenMap, Secret, SensitiveInt, is_sensitive, reveal

_PROCESS_KEY = secrets.token_bytes(32)  # versions made without a key compare within this process only


def config_version(config: EdgeConfig, digest_key: bytes | None = None) -> str:
    """Return the digest of what a config means, `sha256:` and 64 hex digits (C21).

    The order of members with identities, spelled-out defaults and spelling count for nothing. What is declared secret
    or was injected goes in as a digest under `digest_key`, so that no secret can be guessed from a version; without a
    key a random one of this process serves, and versions of configs with such values compare within the process only.
    """
    canonical = _canonical(config, digest_key or _PROCESS_KEY)
    text = json.dumps(canonical, ensure_ascii=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode("ascii")).hexdigest()


def _canonical(piece: ConfigObject, key: bytes) -> dict[str, object]:
    """What differs from the defaults, by field."""
    form: dict[str, object] = {}
    for info in type(piece).__fields__.values():
        value = getattr(piece, info.name)
        if value is None or info.internal or value == info.default:
            continue
        form[info.name] = _canonical_value(value, info, key)
    return form


def _canonical_value(value: object, info: FieldInfo, key: bytes) -> object:
    match value:
        case ConfigObject():
            return _canonical(value, key)
        case FrozenMap():
            pairs = [[_leaf(name, key), _leaf(item, key, secret=info.secret)] for name, item in value.items()]
            return sorted(pairs, key=repr)
        case tuple() if info.key is not None:
            identity = info.key
            ordered = sorted(value, key=lambda member: reveal(getattr(member, identity)))
            return [_canonical(member, key) for member in ordered]
        case tuple():
            leaves = [_leaf(item, key, secret=info.secret) for item in value]
            return sorted(leaves, key=repr) if info.unordered else leaves
        case _:
            return _leaf(value, key, secret=info.secret)


def _leaf(value: object, key: bytes, *, secret: bool = False) -> object:
    if not secret and not is_sensitive(value):
        return value
    real = reveal(value)
    digest = hmac.new(key, f"{type(real).__name__}:{real}".encode(), hashlib.sha256)
    return [digest.hexdigest()]  # a list: no text of the file can look like it


def to_plain(config: ConfigObject) -> dict[str, object]:
    """Return a config object as plain dicts and lists for JSON or YAML: the normalised form with every default.

    Secrets and injected values are masks (C23); a key that is absent and has no default stays absent. Written as YAML
    it loads again to an equal config, where nothing was masked.
    """
    shown: dict[str, object] = {}
    for info in type(config).__fields__.values():
        value = getattr(config, info.name)
        if value is not None and not info.internal:
            shown[info.name] = _plain_value(value, info)
    return shown


def _plain_value(value: object, info: FieldInfo) -> object:
    match value:
        case ConfigObject():
            return to_plain(value)
        case Mapping():
            return {str(name): _plain_leaf(item, info) for name, item in value.items()}
        case tuple() if info.shape is Shape.MEMBERS:
            return [to_plain(member) for member in value]
        case tuple():
            return [_plain_leaf(item, info) for item in value]
        case _:
            return _plain_leaf(value, info)


def _plain_leaf(value: object, info: FieldInfo) -> object:
    if isinstance(value, Secret):
        return value.shown
    if isinstance(value, SensitiveInt) or info.secret:
        return REDACTED
    return value


# --- YAML out ----------------------------------------------------------------------------------------------------

_PLAIN = re.compile(r"[A-Za-z_./][\w./@%+-]*(?::[\w./@%+-]+)*|\d+\.\d+\.\d+\.\d+(?::\d+)?", re.ASCII)
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})  # some reader takes these for more


def to_yaml(plain: Mapping[str, object] | Sequence[Mapping[str, object]]) -> str:
    """Return plain dicts and lists as YAML in block style, as a config file may have it (`$` escaped as C2 wants)."""
    return "".join(line + "\n" for line in _block(plain, ""))


def _block(value: object, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _entry(f"{indent}{_text(str(name))}:", item, indent + "  ")
        if not value:
            yield indent + "{}"
    elif isinstance(value, Sequence):
        for item in value:
            first, *rest = _block(item, indent + "  ") if _is_block(item) else [f"{indent}  {_scalar(item)}"]
            yield f"{indent}- {first.removeprefix(indent + '  ')}"
            yield from rest
        if not value:
            yield indent + "[]"


def _entry(head: str, item: object, indent: str) -> Iterator[str]:
    if _is_block(item):
        yield head
        yield from _block(item, indent)
    else:
        yield f"{head} {_scalar(item)}"


def _is_block(value: object) -> bool:
    """Whether a value takes lines of its own: mappings, and lists of them."""
    if isinstance(value, Mapping):
        return bool(value)
    return isinstance(value, (list, tuple)) and any(isinstance(item, (Mapping, list, tuple)) for item in value)


def _scalar(value: object, *, in_flow: bool = False) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int() | float():
            return str(value)
        case Mapping():
            return "{}"
        case list() | tuple():
            return "[" + ", ".join(_scalar(item, in_flow=True) for item in value) + "]"
        case _:
            text = str(value)
            escaped = text.replace("$", "$$") if "$$" in text or "${" in text else text
            # libyaml reads no plain text with a colon inside [ ].
            return _quoted(escaped) if in_flow and ":" in escaped else _text(escaped)


def _text(text: str) -> str:
    """A scalar that every YAML reader takes for this text."""
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS else _quoted(text)


def _quoted(text: str) -> str:
    return '"' + "".join(map(_escaped, text)) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char == "\n":
        return "\\n"
    code = ord(char)
    if code >= 0x20 and not 0x7F <= code < 0xA0 and char not in "\u2028\u2029\ufeff":
        return char
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


__all__ = ["config_version", "to_plain", "to_yaml"]
