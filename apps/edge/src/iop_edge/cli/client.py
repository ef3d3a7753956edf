"""Where the running Edge's admin API is, and one call to it: no proxy, a plain reason when it fails (R13)."""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from attrs import frozen

if TYPE_CHECKING:
    from iop_edge.state import RuntimeInfo

__all__ = ["Admin", "AdminReply", "UnreachableError", "find_admin"]

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 120.0  # a huge config takes a while to load


class UnreachableError(Exception):
    """The Edge cannot be reached; the text says what was tried and what would be right."""


@frozen
class AdminReply:
    """A status and a decoded JSON object."""

    status: int
    body: dict[str, object]


@frozen
class Admin:
    """One admin API: `host` and `port`, or the path of a unix socket."""

    host: str = ""
    port: int = 0
    unix_socket: str = ""
    written_by: RuntimeInfo | None = None
    """The runtime file's entry, where the address came from it."""

    def __str__(self) -> str:
        if self.unix_socket:
            return f"unix:{self.unix_socket}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        patience: float = 0.0,
    ) -> AdminReply:
        """Make one request; `patience` are seconds that the Edge may wait by itself before it answers.

        Raises UnreachableError. Proxy settings of the environment are not looked at: http.client has none.
        """
        connection = self._connection()
        headers = {"Accept": "application/json"}
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        try:
            connection.connect()
            assert connection.sock is not None
            connection.sock.settimeout(_ANSWER_SECONDS + patience)
            connection.request(method, path, body=content, headers=headers)
            answer = connection.getresponse()
            return AdminReply(answer.status, _decoded(answer.read()))
        except TimeoutError:
            raise UnreachableError(f"the edge at {self} does not answer") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise UnreachableError(self._reason(error)) from None
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self.unix_socket:
            return _UnixConnection(self.unix_socket)
        return http.client.HTTPConnection(self.host, self.port, timeout=_CONNECT_SECONDS)

    def _reason(self, error: Exception) -> str:
        known = self.written_by
        if known is not None and not known.alive:
            return f"no edge is running: the one that said it listens on {self} (process {known.pid}) is gone"
        if isinstance(error, OSError) and error.strerror:
            return f"no edge at {self}: {error.strerror}"
        return f"what listens on {self} is not an edge's admin API"


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_CONNECT_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket file."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_CONNECT_SECONDS)
        self.sock.connect(self._path)


def _decoded(text: bytes) -> dict[str, object]:
    body = json.loads(text)
    if not isinstance(body, dict):
        raise ValueError
    return body


def find_admin(named: str | None) -> Admin:
    """Return the admin API that `--admin` names, else $IOP_ADMIN, else the runtime file of a running Edge does.

    Never the proposed config: its `admin.listen` may differ from what is running. Raises UnreachableError where no
    Edge has said where it is, ValueError for an address that is none.
    """
    named = named or os.environ.get("IOP_ADMIN")
    if named:
        return parse_address(named)
    from iop_edge.cli.files import default_config
    from iop_edge.state import StateFolder

    folder = StateFolder.beside(default_config())
    known = folder.read_runtime()
    if known is None:
        raise UnreachableError(
            f"no edge is running: {folder.path} has no runtime file; "
            "start one with `iop-edge run`, or say where it is with --admin"
        )
    admin = parse_address(known.admin)
    return Admin(admin.host, admin.port, admin.unix_socket, written_by=known)


def parse_address(text: str) -> Admin:
    """Parse host:port, http://host:port or unix:PATH; ValueError says what is wrong."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if path:
            return Admin(unix_socket=path)
    else:
        try:
            parts = urlsplit(text if "://" in text else f"http://{text}")
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port, parts = None, None, urlsplit("")
        if parts.scheme == "http" and host and parts.path in ("", "/") and not parts.query and "@" not in parts.netloc:
            return Admin(host, port if port is not None else 80)
    raise ValueError("an admin address is host:port, http://host:port or unix:PATH")
