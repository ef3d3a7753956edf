"""How a value looks in a change: readable where it may be shown, else a keyed fingerprint (C23, `refresh.md` §6)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from iop_config import ConfigObject, FieldInfo, Format, Secret, is_sensitive, reveal

SHOWN_MAX = 120
"""Longer values are cut: a change is a line to read, not the file once more."""

_MASK = "<redacted>"


class Redactor:
    """Words values for one result; equal secrets get equal fingerprints under one key, and no key no guess."""

    def __init__(self, key: bytes) -> None:
        """`key`: at least 16 random bytes that no reader of the result has."""
        self._key = hashlib.blake2b(key, person=b"iop-refresh").digest()

    def pair(self, before: object, after: object, info: FieldInfo | None) -> tuple[str, str]:
        """Word both sides of a change; of two mappings only the entries that differ."""
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            gone = {k: v for k, v in before.items() if k not in after or after[k] != v}
            come = {k: v for k, v in after.items() if k not in before or before[k] != v}
            return self.text(gone, info), self.text(come, info)
        return self.text(before, info), self.text(after, info)

    def text(self, value: object, info: FieldInfo | None) -> str:
        """Word one value; empty for what is absent, and for an object: its path says which one."""
        if value is None or isinstance(value, ConfigObject):
            return ""
        return _cut(self._word(value, info))

    def _word(self, value: object, info: FieldInfo | None) -> str:
        if isinstance(value, Mapping):
            return "{" + ", ".join(f"{self._leaf(k, None)}: {self._leaf(v, info)}" for k, v in value.items()) + "}"
        if isinstance(value, tuple):
            return "[" + ", ".join(self._leaf(item, info) for item in value) + "]"
        return self._leaf(value, info)

    def _leaf(self, value: object, info: FieldInfo | None) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if is_sensitive(value) or (info is not None and info.secret):
            mask = value.shown if isinstance(value, Secret) else _MASK
            return self._masked(mask, reveal(value))
        text = str(value)
        if info is not None and info.format is Format.SHA256:
            return text[:12] + "…"  # a hash is no secret, and nobody reads it to its end
        if info is not None and info.format is Format.URL:
            bare = _bare_url(text)
            return text if bare == text else self._masked(bare, text)
        return text

    def _masked(self, mask: str, real: object) -> str:
        digest = hashlib.blake2b(str(real).encode(), key=self._key, digest_size=4).hexdigest()
        return f"{mask} #{digest}"


def _bare_url(url: str) -> str:
    """The URL without user, password, and the values of its query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return _MASK
    query = "&".join(f"{pair.partition('=')[0]}={_MASK}" for pair in parts.query.split("&")) if parts.query else ""
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, query, ""))


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"
