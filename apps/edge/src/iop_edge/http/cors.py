"""CORS: off by default, then an allow-list; an origin is never reflected unasked (E14)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from iop_edge.errors import ApiError

__all__ = ["Cors"]

_ALLOWED = frozenset(
    {"authorization", "content-type", "accept", "x-api-key", "x-title", "http-referer", "x-request-id"}
)
_ALLOWED_PREFIXES = ("anthropic-", "openai-", "x-stainless-")
_EXPOSED = b"x-request-id, request-id, retry-after, x-should-retry, x-iop-provider, x-iop-attempts, x-iop-queue-ms"
_VARY = (b"vary", b"origin")


class Cors:
    """Answers for one list of origins; `*` in it lets every origin in. `extra`: one more header that may be sent."""

    def __init__(self, origins: Iterable[str], extra: str | None = None) -> None:
        self._origins = frozenset(origin.encode("latin-1", "replace") for origin in origins)
        self._any = b"*" in self._origins
        self._allowed = _ALLOWED | {extra} if extra else _ALLOWED

    @property
    def enabled(self) -> bool:
        """Whether any origin is let in."""
        return bool(self._origins)

    def _admits(self, origin: bytes) -> bool:
        return self._any or origin in self._origins

    def response_headers(self, origin: bytes) -> list[tuple[bytes, bytes]]:
        """Return the headers of an answer to a page of `origin`."""
        if not self._origins:
            return []
        if not self._admits(origin):
            return [_VARY]
        allowed = b"*" if self._any else origin
        return [(b"access-control-allow-origin", allowed), (b"access-control-expose-headers", _EXPOSED), _VARY]

    def preflight(self, headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        """Return the headers of the 204 beside those of every answer. Raises ApiError 403 for a foreign origin."""
        if not self._admits(headers.get(b"origin", b"")):
            raise ApiError("forbidden", "this origin is not let in; openai.cors_origins lists those that are")
        asked = headers.get(b"access-control-request-headers", b"").decode("latin-1").lower()
        names = [name for name in (part.strip() for part in asked.split(",")) if self._may_send(name)]
        return [
            (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
            (b"access-control-allow-headers", ", ".join(names).encode("latin-1")),
            (b"access-control-max-age", b"600"),
        ]

    def _may_send(self, name: str) -> bool:
        return name in self._allowed or name.startswith(_ALLOWED_PREFIXES)
