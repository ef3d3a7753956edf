"""Keys of callers (E4) and their own provider tokens (E6)."""

from __future__ import annotations

import hashlib

import pytest

from iop_config import PrincipalToken, ProviderAuth
from iop_edge.auth import Authenticator, Principal, ProviderTokens
from iop_edge.errors import ApiError
from support.rules import rule

KEY, OTHER = b"sk-iop-canary-1", b"sk-iop-canary-2"
TOKENS = (
    PrincipalToken(
        token_ref="ide", token_hash_sha256=hashlib.sha256(KEY).hexdigest(), principal_ref="team", principal_alias="t"
    ),
    PrincipalToken(
        token_ref="batch", token_hash_sha256=hashlib.sha256(OTHER).hexdigest().upper(), principal_ref="team"
    ),
)


@rule("E4", "C14")
@pytest.mark.parametrize(
    ("headers", "token_ref"),
    [
        ({b"authorization": b"Bearer " + KEY}, "ide"),
        ({b"authorization": b"bearer  " + OTHER}, "batch"),
        ({b"x-api-key": OTHER}, "batch"),
        ({b"authorization": b"Bearer " + KEY, b"x-api-key": b"wrong"}, "ide"),
    ],
)
def test_a_known_key_names_its_principal(headers: dict[bytes, bytes], token_ref: str) -> None:
    principal = Authenticator(TOKENS).check(headers)
    assert principal is not None
    assert (principal.principal_ref, principal.token_ref) == ("team", token_ref)


@rule("E4")
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "missing_api_key"),
        ({b"authorization": b"Basic " + KEY}, "missing_api_key"),
        ({b"authorization": b"Bearer "}, "missing_api_key"),
        ({b"authorization": b"Bearer sk-wrong"}, "invalid_api_key"),
        ({b"x-api-key": b"sk-wrong"}, "invalid_api_key"),
        # `x-api-key` counts only where there is no `Authorization`.
        ({b"authorization": b"Bearer sk-wrong", b"x-api-key": KEY}, "invalid_api_key"),
    ],
)
def test_anything_else_is_401_and_never_echoed(headers: dict[bytes, bytes], code: str) -> None:
    with pytest.raises(ApiError) as caught:
        Authenticator(TOKENS).check(headers)
    assert (caught.value.status, caught.value.code) == (401, code)
    assert "sk-wrong" not in caught.value.message
    assert KEY.decode() not in caught.value.message


@rule("E4")
def test_every_hash_is_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(known: bytes, given: bytes) -> bool:
        compared.append(known)
        return known == given

    monkeypatch.setattr("iop_edge.auth.hmac.compare_digest", compare)
    Authenticator(TOKENS).check({b"x-api-key": KEY})
    assert len(compared) == len(TOKENS)


@rule("E4")
def test_without_tokens_everybody_may_call_and_is_nobody() -> None:
    assert Authenticator(()).open
    assert Authenticator(()).check({b"authorization": b"Bearer anything"}) is None


@rule("C14")
def test_a_principal_has_no_place_for_a_token() -> None:
    assert "canary" not in repr(Authenticator(TOKENS).check({b"x-api-key": KEY}))
    assert {attribute.name for attribute in Principal.__attrs_attrs__} == {
        "principal_ref",
        "token_ref",
        "principal_alias",
    }


HEADER = b"x-iop-provider-authorization"


@rule("E6", "C15")
@pytest.mark.parametrize(
    ("config", "sent", "expected"),
    [
        (ProviderAuth(), b"tok", ()),
        (ProviderAuth(enabled=True), b"tok", (("Authorization", "Bearer tok"),)),
        (ProviderAuth(enabled=True), b"Bearer tok", (("Authorization", "Bearer tok"),)),
        (ProviderAuth(enabled=True, target_header="X-Key", scheme="Token"), b"t", (("X-Key", "Token t"),)),
        (ProviderAuth(enabled=True, required=False), b"", ()),
    ],
)
def test_the_callers_provider_token_becomes_a_secret_header_of_the_run(
    config: ProviderAuth, sent: bytes, expected: tuple[tuple[str, str], ...]
) -> None:
    assert ProviderTokens(config).secret_headers({HEADER: sent}) == expected


@rule("E6")
@pytest.mark.parametrize("sent", [b"", b"  ", b"Bearer ", b"tok\x01en", "töken".encode()])
def test_a_required_token_that_is_missing_or_no_header_is_401(sent: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        ProviderTokens(ProviderAuth(enabled=True)).secret_headers({HEADER: sent})
    assert (caught.value.status, caught.value.code) == (401, "missing_provider_auth")
    assert "tok" not in caught.value.message.replace("token", "")
