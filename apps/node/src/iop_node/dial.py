"""Opening a call to the Edge: what is refused before dialling, TLS and pinning, and why a call failed, in plain words.

gRPC says UNAVAILABLE to nearly everything; only the details tell the causes apart (G26).
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import os
import re
import ssl
import tempfile

from attrs import field, frozen

from iop_node.backoff import Cause
from iop_node.session import Over
from iop_wire.limits import channel_options
from iop_wire.rpc import grpc

_TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
_NODE_ID = re.compile(r"[\x21-\x7e]{1,256}")


class DialError(Exception):
    """What waiting cannot cure: the program ends with exit code 2 and this text."""


@frozen
class DialTls:
    """How to trust the Edge: a CA (PEM), or the sha256 of its certificate; neither: the system's CAs."""

    ca: bytes | None = None
    fingerprint: str | None = None
    """64 hex digits over the DER form, checked before the token is sent."""
    certificate: bytes | None = None
    """This Node's own certificate chain for mTLS (PEM), with its key."""
    private_key: bytes | None = field(default=None, repr=False)


@frozen
class DialSettings:
    """Where the Edge is and who this Node is (N1)."""

    edge: str
    """host:port"""
    node_id: str
    token: str = field(repr=False)
    tls: DialTls | None = None
    insecure: bool = False
    """Plaintext off loopback is meant."""

    @property
    def host(self) -> str:
        """The Edge's host without port and brackets."""
        return self.edge.rpartition(":")[0].removeprefix("[").removesuffix("]")

    @property
    def port(self) -> int:
        """The Edge's port."""
        return int(self.edge.rpartition(":")[2])

    @property
    def loopback(self) -> bool:
        """Whether the Edge is on this machine."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def check_settings(settings: DialSettings) -> None:
    """Raise DialError for what no amount of waiting would cure."""
    host, _, port = settings.edge.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= 65535:
        raise DialError(f"edge address {settings.edge!r} is not of the form host:port")
    if not _NODE_ID.fullmatch(settings.node_id):
        raise DialError("the node id must be printable ASCII without spaces")
    if not _TOKEN.fullmatch(settings.token):
        # Never with the value: it is a secret, if a broken one (G28).
        raise DialError("the token must be one line of printable ASCII without spaces; is the token file complete?")
    if settings.tls is None and not settings.insecure and not settings.loopback:
        raise DialError(
            f"{settings.edge} is not on this machine and no TLS is set up: the token would travel in plain text; "
            "use the join line of an Edge with server.tls, or --insecure in a network that you trust"
        )
    pin = settings.tls.fingerprint if settings.tls is not None else None
    if pin is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", pin):
        raise DialError("the certificate hash must be 64 hex digits")


class DialFailedError(Exception):
    """This attempt failed before a session began; the connection tries again."""

    def __init__(self, over: Over) -> None:
        super().__init__(over.message)
        self.over = over


async def open_channel(settings: DialSettings, timeout: float) -> grpc.aio.Channel:
    """Return a fresh channel (G19); with a pinned certificate only after the Edge has shown that very one."""
    tls = settings.tls
    if tls is None:
        return grpc.aio.insecure_channel(settings.edge, options=channel_options(loopback=settings.loopback))
    root, name = tls.ca, None
    if tls.fingerprint is not None:
        try:
            async with asyncio.timeout(timeout):
                root, name = await _pinned(settings, tls.fingerprint.lower())
        except (OSError, TimeoutError) as error:
            raise DialFailedError(_unreachable(settings.edge, error)) from None
    credentials = grpc.ssl_channel_credentials(root, tls.private_key, tls.certificate)
    options = channel_options(loopback=settings.loopback, name_override=name)
    return grpc.aio.secure_channel(settings.edge, credentials, options=options)


async def _pinned(settings: DialSettings, fingerprint: str) -> tuple[bytes, str | None]:
    """Return the Edge's certificate as a root to trust, and a name in it; DialFailedError when it is another one."""
    anything = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anything.check_hostname = False
    anything.verify_mode = ssl.CERT_NONE
    shown = await _handshake(settings, anything)
    der = shown.getpeercert(binary_form=True) or b""
    if hashlib.sha256(der).hexdigest() != fingerprint:
        text = (
            f"the certificate of {settings.edge} is not the one of the join line; if the Edge has a new one, "
            "take a new join line from `iop-edge node add`, else somebody else answers there"
        )
        raise DialFailedError(Over(Cause.TLS, text))
    pem = ssl.DER_cert_to_PEM_cert(der)
    # Once more, trusting exactly this certificate: only then does Python tell the names in it.
    exact = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    exact.check_hostname = False
    exact.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    exact.load_verify_locations(cadata=pem)
    return pem.encode(), _first_name(await _handshake(settings, exact))


def _first_name(shown: ssl.SSLObject) -> str | None:
    """Return a name that the certificate is for: the pin says whom to trust, gRPC still wants a name that matches."""
    for alternative in (shown.getpeercert() or {}).get("subjectAltName", ()):
        kind, name = alternative[0], alternative[1]
        if kind in ("DNS", "IP Address") and isinstance(name, str):
            return name
    return None


async def _handshake(settings: DialSettings, context: ssl.SSLContext) -> ssl.SSLObject:
    context.set_alpn_protocols(["h2"])
    tls = settings.tls
    if tls is not None and tls.certificate is not None and tls.private_key is not None:
        _load_own(context, tls.certificate, tls.private_key)
    try:
        _, writer = await asyncio.open_connection(settings.host, settings.port, ssl=context, server_hostname="")
    except ssl.SSLError as error:
        text = f"no TLS with {settings.edge} ({error.reason or 'handshake failed'}); does that Edge have server.tls?"
        raise DialFailedError(Over(Cause.TLS, text)) from None
    try:
        found = writer.get_extra_info("ssl_object")
        assert isinstance(found, ssl.SSLObject)
        return found
    finally:
        writer.transport.abort()


def _load_own(context: ssl.SSLContext, certificate: bytes, private_key: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "pair.pem")
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(certificate + b"\n" + private_key)
        context.load_cert_chain(path)


def _unreachable(edge: str, error: Exception) -> Over:
    if isinstance(error, TimeoutError):
        return Over(Cause.UNREACHABLE, f"no answer from {edge}; is the address right and no firewall between?")
    if isinstance(error, ConnectionRefusedError):
        return Over(Cause.UNREACHABLE, f"nothing listens on {edge}; is the Edge running?")
    reason = error.strerror if isinstance(error, OSError) else None
    return Over(Cause.UNREACHABLE, f"{edge} cannot be reached: {reason or type(error).__name__}")


def explain_failure(settings: DialSettings, code: grpc.StatusCode, details: str, welcomed: bool) -> Over:
    """Return why a call ended, in words for the one who can change it."""
    edge = settings.edge
    known = _by_code(settings, code, details)
    if known is not None:
        return known
    if welcomed:
        return Over(Cause.LOST, "the connection to the Edge broke")
    lower = details.lower()
    if "http1" in lower or "http/1" in lower or "http2 settings" in lower:
        return _not_an_edge(edge)
    if "hostname verification" in lower or "peer name" in lower:
        return Over(Cause.TLS, f"the certificate of {edge} is for another name than {settings.host}")
    if "certificate_verify_failed" in lower or "certificate verify failed" in lower:
        return Over(Cause.TLS, f"the certificate of {edge} is not signed by a CA that this Node trusts")
    if "handshake" in lower or "ssl" in lower:
        if settings.tls is not None and settings.tls.certificate is None and "socket closed" in lower:
            return Over(Cause.TLS, f"{edge} ended the TLS handshake; does it ask for a Node certificate (mTLS)?")
        return Over(Cause.TLS, f"no TLS with {edge}; does that Edge have server.tls, and is the port right?")
    if "refused" in lower:
        return Over(Cause.UNREACHABLE, f"nothing listens on {edge}; is the Edge running?")
    if "name resolution" in lower or "dns" in lower or "domain name" in lower:
        return Over(Cause.UNREACHABLE, f"the name {settings.host} cannot be resolved")
    if "socket closed" in lower or "connection reset" in lower or "broken pipe" in lower:
        hint = "does it want TLS" if settings.tls is None else "does it ask for a Node certificate (mTLS)"
        return Over(Cause.UNREACHABLE, f"{edge} closed the connection at once; {hint}, or is it no IOP Edge?")
    return Over(Cause.UNREACHABLE, f"{edge} cannot be reached: {details[:200] or code.name}")


def _by_code(settings: DialSettings, code: grpc.StatusCode, details: str) -> Over | None:
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED):
        text = (
            f"{settings.edge} does not accept node {settings.node_id!r} with this token: the id is not in its config, "
            "or the token is not the one whose hash stands there"
        )
        return Over(Cause.REFUSED, text)
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return Over(Cause.VERSION, f"{settings.edge}: {details}")
    if code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND):
        return _not_an_edge(settings.edge)
    return None


def _not_an_edge(edge: str) -> Over:
    return Over(Cause.NOT_AN_EDGE, f"{edge}: that port is not an IOP Edge; the address is the Edge's server.listen")
