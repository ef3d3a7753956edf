"""Rules of listeners: an address each, plaintext and the admin API on loopback (C25, R12)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from iop_config._model import EdgeConfig
from iop_config._problems import ConfigPath, Finding
from iop_config._values import plain
from iop_config._view import View, named


def r12_admin(view: View) -> Iterator[Finding]:
    """The admin API listens on loopback only (R12)."""
    listen = view.config.admin.listen
    if listen is not None and not _is_loopback(_host_port(listen)[0]):
        yield Finding(
            code="R12.admin-off-loopback",
            path=("admin", "listen"),
            message=f"the admin API listens on loopback only, not on {named(listen)}",
            suggestion="use 127.0.0.1, or unix_socket; reach it from elsewhere through ssh",
        )


def c25_plaintext(view: View) -> Iterator[Finding]:
    """The link to the Nodes is plaintext on loopback only, unless it is said aloud (C25)."""
    server = view.config.server
    if server.tls is not None or server.insecure or _is_loopback(_host_port(server.listen)[0]):
        return
    yield Finding(
        code="C25.plaintext",
        path=("server", "listen"),
        message=f"{named(server.listen)} would be plaintext off loopback, and Nodes send their tokens there",
        suggestion="set server.tls, or server.insecure: true if the network protects it",
        needs=(("server", "insecure"), ("server", "tls")),
    )


def c25_addresses(view: View) -> Iterator[Finding]:
    """No two listeners share an address (C25)."""
    taken: dict[int, list[tuple[str, ConfigPath, str]]] = {}  # port: host, path, address as given
    for path, listen, switch in _listeners(view.config):
        host, port = _host_port(listen)
        if port <= 0:  # 0: a free one; below: not an address, which the structure has told
            continue
        others = taken.setdefault(port, [])
        clash = next(((where, given) for other, where, given in others if _overlap(host, other)), None)
        if clash is None:
            others.append((host, path, listen))
            continue
        where, given = clash
        yield Finding(
            code="C25.address-taken",
            path=path,
            message=f"{named(listen)} is taken by {'.'.join(map(str, where))}, {given} at {view.at(where)}",
            suggestion="give each listener a port of its own",
            needs=(where, *switch),
        )


def _listeners(config: EdgeConfig) -> Iterator[tuple[ConfigPath, str, tuple[ConfigPath, ...]]]:
    """Every listener that `run` opens: its path, its address, and the switch that turns it on."""
    always: tuple[tuple[str, str | None], ...] = (
        ("server", config.server.listen),
        ("bootstrap", config.bootstrap.listen),
        ("admin", config.admin.listen),
        ("metrics", config.metrics.listen),
    )
    for name, listen in always:
        if listen is not None:
            yield (name, "listen"), listen, ()
    for name, part in (("console", config.console), ("openai", config.openai), ("a2a", config.a2a)):
        if part.enabled:
            yield (name, "listen"), part.listen, ((name, "enabled"),)


def _host_port(address: str) -> tuple[str, int]:
    """host:port apart; port -1 where the text is no address."""
    host, _, port = plain(address).rpartition(":")
    host = host.removeprefix("[").removesuffix("]").lower()
    return host, int(port) if port.isascii() and port.isdigit() else -1


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _overlap(one: str, other: str) -> bool:
    """Whether listeners on these hosts collide on one port."""
    anywhere = {"", "0.0.0.0", "::"}
    local = {"localhost", "127.0.0.1"}
    return one == other or bool({one, other} & anywhere) or {one, other} <= local
