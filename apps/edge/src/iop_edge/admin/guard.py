"""Who may use the admin API: loopback alone does not keep a browser on the same machine out (R12, refresh.md §8)."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping

from attrs import frozen

__all__ = ["Refusal", "check_loopback", "hosts_of", "refusal_of"]

BODY_BYTES_MAX = 16 * 2**20

ROUTES: Mapping[str, str] = {
    "/refresh": "POST",
    "/rollback": "POST",
    "/status": "GET",
    "/config": "GET",
    "/explain": "GET",
}

Headers = Iterable[tuple[bytes, bytes]]


@frozen
class Refusal:
    """Why a request is not even looked at."""

    status: int
    code: str
    message: str
    allow: str = ""
    """For a 405: the method that is right."""


def check_loopback(host: str) -> str:
    """Return the address to bind for a host of `admin.listen`; ValueError for one that others can reach (R12)."""
    if host == "localhost":
        return "127.0.0.1"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f'"{host}" is no loopback address; use 127.0.0.1, ::1 or localhost') from None
    if not address.is_loopback:
        raise ValueError(f"{host} can be reached from other machines; the admin API takes 127.0.0.1, ::1 or localhost")
    return host


def hosts_of(host: str, port: int) -> frozenset[str]:
    """Return what a `Host` header may say for a listener: a name that was made to point here is not among it."""
    names = {"127.0.0.1", "localhost", "[::1]", f"[{host}]" if ":" in host else host}
    return frozenset({f"{name}:{port}" for name in names} | (names if port == 80 else set()))


def refusal_of(method: str, path: str, headers: Headers, hosts: frozenset[str] | None) -> Refusal | None:
    """Judge a request by its head alone; None lets it in. `hosts` is None on a unix socket: no browser reaches it."""
    found: dict[bytes, list[str]] = {}
    for name, value in headers:
        found.setdefault(name.lower(), []).append(value.decode("latin-1").strip())
    said = [host.lower() for host in found.get(b"host", [])]
    if hosts is not None and (len(said) != 1 or said[0] not in hosts):
        allowed = ", ".join(sorted(hosts))
        return Refusal(403, "foreign_host", f"the Host header names another place than this listener ({allowed})")
    if b"origin" in found:
        return Refusal(403, "browser", "a request with an Origin comes from a web page; the admin API is not for them")
    if any(value.lower() != "none" for value in found.get(b"sec-fetch-site", [])):
        return Refusal(403, "browser", "the request was made by a web page; the admin API is not for them")
    right = ROUTES.get(path)
    if right is None:
        known = ", ".join(f"{verb} {name}" for name, verb in ROUTES.items())
        return Refusal(404, "not_found", f"there is no such path; there is {known}")
    if method != right:
        return Refusal(405, "method_not_allowed", f"{path} takes {right}", allow=right)
    if right == "POST":
        return _body_refusal(found)
    return None


def _body_refusal(found: Mapping[bytes, list[str]]) -> Refusal | None:
    types = [value.partition(";")[0].strip().lower() for value in found.get(b"content-type", [])]
    # A form or text/plain is what a web page can send without asking; JSON is not.
    if types != ["application/json"]:
        return Refusal(403, "not_json", "the body must be sent as Content-Type: application/json")
    length = found.get(b"content-length", ["0"])[0]
    if length.isdecimal() and int(length) > BODY_BYTES_MAX:
        return too_large()
    return None


def too_large() -> Refusal:
    """The body is over the cap."""
    return Refusal(413, "too_large", f"the body is larger than {BODY_BYTES_MAX // 2**20} MiB")
