"""The connections of one adapter instance to its runtime: kept, unlimited, tried again where that is safe (N8)."""

from __future__ import annotations

import io
import weakref
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import aiohttp

from iop_node.adapters.base import RunFailedError
from iop_node.adapters.failures import broken
from iop_node.link import RunError

__all__ = ["HttpClient", "reason_of"]

_CONNECT_S = 10.0
# Below the 5 s after which common servers close: a connection that both use at that moment is lost.
_KEEP_S = 4.0
# Beyond this the HTTP client writes a body in pieces, so that the loop is not held up.
_INLINE_BODY = 256 * 1024
_LINE_MAX = 64 * 1024

_reused: ContextVar[bool] = ContextVar("reused", default=False)
"""Whether the connection that this task got last had served a request before."""


class _Connector(aiohttp.TCPConnector):
    """Tells in `_reused` what it handed out; much cheaper than tracing every request."""

    def __init__(self, *, fresh: bool) -> None:
        if fresh:
            super().__init__(limit=0, force_close=True)
        else:
            super().__init__(limit=0, keepalive_timeout=_KEEP_S)
        self._served: weakref.WeakSet[Any] = weakref.WeakSet()

    async def connect(self, *args: Any, **kwargs: Any) -> Any:
        connection = await super().connect(*args, **kwargs)
        protocol = connection.protocol
        _reused.set(protocol in self._served)
        if protocol is not None:
            self._served.add(protocol)
        return connection


class HttpClient:
    """Made on first use, since a session belongs to the running loop."""

    def __init__(self) -> None:
        self._kept: aiohttp.ClientSession | None = None
        self._single: aiohttp.ClientSession | None = None

    @property
    def kept(self) -> aiohttp.ClientSession:
        """The session whose connections are used again."""
        if self._kept is None:
            self._kept = _session(fresh=False)
        return self._kept

    @property
    def single(self) -> aiohttp.ClientSession:
        """The session that opens a connection for every request: for second tries and for questions about health."""
        if self._single is None:
            self._single = _session(fresh=True)
        return self._single

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> aiohttp.ClientResponse:
        """Send the body; returns once the head of the answer is there. The caller closes the response.

        Raises RunFailedError when there is none. A kept connection that the runtime had closed meanwhile costs a second
        try on a fresh one: of such a request nothing was read (N8).
        """
        for session in (self.kept, self.single):
            _reused.set(False)
            data = body if len(body) <= _INLINE_BODY else io.BytesIO(body)
            try:
                return await session.post(url, data=data, headers=headers, allow_redirects=False)
            except TimeoutError:
                text = f"the runtime did not accept a connection within {_CONNECT_S:.0f} s"
                raise RunFailedError(RunError("upstream_error", text, retryable=True)) from None
            except aiohttp.ClientConnectorError as error:
                text = f"the runtime cannot be reached: {reason_of(error)}"
                raise RunFailedError(RunError("upstream_error", text, retryable=True)) from None
            except (aiohttp.ClientError, ConnectionError) as error:
                if _reused.get():
                    continue
                raise broken(f"the runtime broke the connection: {type(error).__name__}") from None
        raise broken("the runtime broke the connection twice")

    async def close(self) -> None:
        """Close every connection."""
        for session in (self._kept, self._single):
            if session is not None:
                await session.close()
        self._kept = self._single = None


def _session(*, fresh: bool) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=_Connector(fresh=fresh),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        max_line_size=_LINE_MAX,
        max_field_size=_LINE_MAX,
        trust_env=False,
    )


def reason_of(error: aiohttp.ClientConnectorError) -> str:
    """Return why no connection came about, without the address: it may hold a password."""
    inner = error.os_error
    if isinstance(inner, ConnectionRefusedError):
        return "connection refused"
    text = inner.strerror
    return text.lower() if isinstance(text, str) and text else type(inner).__name__
