"""What a text must look like, per `Format`; the words never quote it (C23)."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

from iop_config._fields import Format
from iop_config._values import Secret

Wrong = tuple[str, str]  # what is wrong, what would be right

NAME_MAX = 256
_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*\.?")
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SHA256 = re.compile(r"[0-9A-Fa-f]{64}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEX = re.compile(r"[0-9A-Fa-f]+")


def check(wanted: Format, text: str) -> Wrong | None:
    """Return what is wrong with a text and what would be right, or None."""
    if wanted is Format.TEXT:
        return None
    if wanted is Format.NAME:
        return _name(text)
    return _CHECKS[wanted](text)


def shown(wanted: Format, text: str) -> str:
    """Return a text of the file as the config keeps it: a URL with credentials or a query is shown without them."""
    if wanted is not Format.URL or not ("@" in text or "?" in text):
        return text
    parts = urlsplit(text)
    masked = parts._replace(
        netloc=parts.netloc.rpartition("@")[2],
        query="&".join(f"{item.partition('=')[0]}=<redacted>" for item in parts.query.split("&") if item),
    )
    return Secret(text, masked.geturl())


def _name(text: str) -> Wrong | None:
    if text and len(text) <= NAME_MAX and text.isprintable() and text[0] != " " and text[-1] != " ":
        return None
    if not text:
        return "an empty text", "write a name"
    if len(text) > NAME_MAX:
        return f"a name of {len(text)} characters", f"at most {NAME_MAX}"
    if text != text.strip():
        return "a name with a space at one end", "remove the space"
    return "a name with a character that cannot be printed", "remove it"


def _path(text: str) -> Wrong | None:
    if not text:
        return "an empty text", "write a path"
    return ("a path with a NUL character", "remove it") if "\0" in text else None


def _address(text: str) -> Wrong | None:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port:
        if text and not colon:
            return "an address without a port", "write host:port, such as 127.0.0.1:8080"
        return "not an address", "write host:port, such as 127.0.0.1:8080"
    return _host(host) or _port(port)


def _host(host: str) -> Wrong | None:
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            return "not an IPv6 address inside [ ]", "write such as [::1]:8080"
        return None
    if ":" in host:
        return "an IPv6 address without [ ]", "write such as [::1]:8080"
    if re.fullmatch(r"[0-9.]+", host):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            return "not an IPv4 address", "write four numbers up to 255, such as 127.0.0.1"
        return None
    if len(host) > 253 or not _HOST.fullmatch(host):
        return "not a host name", "write a name such as edge.example.internal, or an IP address"
    return None


def _port(port: str) -> Wrong | None:
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65535):
        return "not a port", "a port is a number from 0 to 65535"
    return None


def _url(text: str) -> Wrong | None:
    right = "write http(s)://host[:port][/path]"
    if not text or not text.isprintable() or " " in text:
        return "not a URL", right
    try:
        parts = urlsplit(text)
    except ValueError:
        return "not a URL", right
    if parts.scheme.lower() not in ("http", "https") or not text.lower().startswith(("http://", "https://")):
        return "a URL without http:// or https://", right
    if parts.fragment or text.endswith("#"):
        return "a URL with a fragment (#…)", "remove it"
    host, port = parts.netloc.rpartition("@")[2], ""
    if not host.endswith("]") and ":" in host:
        host, _, port = host.rpartition(":")
        if not port:
            return "a URL with a colon and no port", right
    if not host:
        return "a URL without a host", right
    return _host(host) or (_port(port) if port else None)


def _sha256(text: str) -> Wrong | None:
    if _SHA256.fullmatch(text):
        return None
    if _HEX.fullmatch(text):
        return f"{len(text)} hex digits", "a sha256 has 64"
    return "not a sha256", "write the 64 hex digits of the token's sha256, never the token"


def _header(text: str) -> Wrong | None:
    return None if _TOKEN.fullmatch(text) else ("not a header's name", "write letters, digits and hyphens")


def _header_value(text: str) -> Wrong | None:
    if any((ord(char) < 32 and char != "\t") or ord(char) == 127 for char in text):
        return "a header's value with a line break or another control character", "remove it"
    if not all(ord(char) < 256 for char in text):
        return "a header's value with a character beyond Latin-1", "write ASCII"
    return None if text == text.strip() else ("a header's value with a space at one end", "remove the space")


def _env_name(text: str) -> Wrong | None:
    if _ENV_NAME.fullmatch(text):
        return None
    return "not an environment variable's name", "write letters, digits and underscores"


def _origin(text: str) -> Wrong | None:
    if text == "*":
        return None
    right = "write scheme://host[:port], or *"
    scheme, slashes, rest = text.partition("://")
    if not slashes or not re.fullmatch(r"[a-z][a-z0-9+.-]*", scheme) or not rest or set(rest) & set("/?#@ "):
        return "not a web origin", right
    host, port = rest, ""
    if not rest.endswith("]") and ":" in rest:
        host, _, port = rest.rpartition(":")
    return _host(host) or (_port(port) if port else None)


_CHECKS = {
    Format.PATH: _path,
    Format.ADDRESS: _address,
    Format.URL: _url,
    Format.SHA256: _sha256,
    Format.HEADER: _header,
    Format.HEADER_VALUE: _header_value,
    Format.ENV_NAME: _env_name,
    Format.ORIGIN: _origin,
}
