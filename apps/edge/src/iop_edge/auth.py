"""Who is calling (E4), and the caller's own provider token on its way to the run (E6). Tokens never leave this file."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from attrs import frozen

from iop_config import PrincipalToken, ProviderAuth
from iop_edge.errors import ApiError

__all__ = ["Authenticator", "Principal", "ProviderTokens"]


@frozen
class Principal:
    """Whom usage is counted for: never the token itself (C14)."""

    principal_ref: str
    token_ref: str
    principal_alias: str | None = None


class Authenticator:
    """Checks a request's key against every configured hash, in a time that does not depend on which one matches."""

    def __init__(self, tokens: Iterable[PrincipalToken]) -> None:
        self._known = tuple(
            (
                bytes.fromhex(token.token_hash_sha256),
                Principal(token.principal_ref, token.token_ref, token.principal_alias),
            )
            for token in tokens
        )

    @property
    def open(self) -> bool:
        """Whether no key is configured, so that anybody may call."""
        return not self._known

    def check(self, headers: Mapping[bytes, bytes]) -> Principal | None:
        """Return the caller; None where none is asked for. `headers` by lower-case name.

        Raises ApiError 401 that says what to send, and never what was sent.
        """
        if not self._known:
            return None
        token = _offered(headers)
        if token is None:
            raise ApiError(
                "missing_api_key", "an API key is needed; send it as `Authorization: Bearer KEY` or `x-api-key: KEY`"
            )
        digest = hashlib.sha256(token).digest()
        found: Principal | None = None
        for known, principal in self._known:
            if hmac.compare_digest(known, digest):
                found = principal
        if found is None:
            raise ApiError("invalid_api_key", "the API key that was sent is not known here; check it, or ask for one")
        return found


def _offered(headers: Mapping[bytes, bytes]) -> bytes | None:
    # `x-api-key` counts only where there is no `Authorization`: a request with two different keys has one meaning.
    authorization = headers.get(b"authorization")
    if authorization is not None:
        scheme, _, token = authorization.strip().partition(b" ")
        return token.strip() if scheme.lower() == b"bearer" and token.strip() else None
    return headers.get(b"x-api-key", b"").strip() or None


class ProviderTokens:
    """Turns the caller's provider token into the secret header of the run (E6)."""

    def __init__(self, config: ProviderAuth) -> None:
        self._config = config
        self._from = config.from_header.lower().encode("latin-1")

    @property
    def header(self) -> str | None:
        """The lower-case name of the request header that brings the token; None while this is off."""
        return self._config.from_header.lower() if self._config.enabled else None

    def secret_headers(self, headers: Mapping[bytes, bytes]) -> tuple[tuple[str, str], ...]:
        """Return `target_header: <scheme> <token>` for the run, or nothing.

        Raises ApiError 401 where a token is required and missing, or is no header value.
        """
        config = self._config
        if not config.enabled:
            return ()
        token = headers.get(self._from, b"").strip()
        scheme, _, rest = token.partition(b" ")
        if scheme.lower() == config.scheme.encode("latin-1").lower():
            token = rest.strip()  # sent with its scheme already
        if not token:
            if not config.required:
                return ()
            raise ApiError("missing_provider_auth", f"a provider token is needed; send it as `{config.from_header}`")
        text = token.decode("latin-1")
        if not text.isascii() or not text.isprintable():
            raise ApiError(
                "missing_provider_auth",
                f"{config.from_header}: the token is not printable ASCII; send it as it was issued",
            )
        return ((config.target_header, f"{config.scheme} {text}"),)
