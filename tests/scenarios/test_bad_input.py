"""What a client gets for a mistake of its own: the error object of E3, with the right status, and the Edge goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest

from iop_edge.tokens import API_KEY_PREFIX, digest, new_token
from support.rules import rule
from support.stack import Stack, eventually, openai_config, running

KEY = new_token(API_KEY_PREFIX)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder: Path = tmp_path_factory.mktemp("bad")
    with running(folder) as made:
        config = openai_config(made.token_hash, base_url=made.runtime(), capacity=1)
        key = f"{{token_ref: ci, principal_ref: build, token_hash_sha256: {digest(KEY)}}}"
        made.edge(config.replace("response_headers: true}", f"response_headers: true, principal_tokens: [{key}]}}"))
        made.node()
        made.wait_available("p")
        yield made
        with made.client(api_key=KEY) as client:
            good = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "tokens=2"}])
            assert good.choices[0].message.content == "t0 t1"
        eventually("every counter at rest", made.is_idle)


def post(stack: Stack, content: bytes, key: str | None = KEY, path: str = "/chat/completions") -> httpx2.Response:
    """Send raw bytes, as no SDK would."""
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    with httpx2.Client(trust_env=False, timeout=60) as http:
        return http.post(stack.base_url + path, content=content, headers=headers)


def error_of(response: httpx2.Response) -> dict[str, Any]:
    """The error object, whose shape is checked on the way."""
    body = response.json()
    assert body.keys() == {"error"}
    error: dict[str, Any] = body["error"]
    assert {"message", "type", "code", "param"} <= error.keys()
    assert error["message"]
    assert response.headers["x-request-id"]
    return error


def chat(**changes: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **changes}).encode()


@rule("E1", "E3")
def test_an_unknown_model_is_404_and_the_sdk_knows_it(stack: Stack) -> None:
    with stack.client(api_key=KEY) as client, pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="gpt-unknown", messages=[{"role": "user", "content": "hi"}])
    assert caught.value.code == "model_not_found"


@rule("E3")
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"null", b'{"model": "m", "messages": [}', b"\xff\xfe", b'{"model": 1}', b"{}"]
)
def test_malformed_json_is_400(stack: Stack, content: bytes) -> None:
    response = post(stack, content)
    assert response.status_code == 400
    assert error_of(response)["type"] == "invalid_request_error"


@rule("E3")
@pytest.mark.parametrize("messages", [[], "hi", None, 7])
def test_messages_that_are_empty_or_no_list_are_400(stack: Stack, messages: object) -> None:
    response = post(stack, chat(messages=messages))
    assert response.status_code == 400
    assert error_of(response)["param"] == "messages"


@rule("E3")
def test_a_body_over_64_mib_is_413(stack: Stack) -> None:
    try:
        response = post(stack, chat(messages=[{"role": "user", "content": "x" * (64 * 2**20)}]))
    except httpx2.WriteError:
        pytest.skip("this client does not read an answer that came before its body was sent")
    assert response.status_code == 413
    error_of(response)


@rule("E4", "E3")
@pytest.mark.parametrize("key", [None, "wrong", KEY[:-1], KEY + "x", "ключ"])
def test_a_missing_or_wrong_key_is_401_and_is_not_repeated_back(stack: Stack, key: str | None) -> None:
    headers = {b"Authorization": b"Bearer " + key.encode()} if key else {}
    with httpx2.Client(trust_env=False, timeout=60) as http:
        response = http.post(stack.base_url + "/chat/completions", content=chat(), headers=headers)
    assert response.status_code == 401
    assert error_of(response)["code"] == ("invalid_api_key" if key else "missing_api_key")
    assert key is None or key not in response.text


@rule("E2", "E3")
def test_a_path_that_does_not_exist_is_404_and_a_wrong_method_405(stack: Stack) -> None:
    assert error_of(post(stack, chat(), path="/chat/nothing"))
    with httpx2.Client(trust_env=False, timeout=60) as http:
        wrong = http.get(stack.base_url + "/chat/completions", headers={"Authorization": f"Bearer {KEY}"})
    assert wrong.status_code == 405
    error_of(wrong)


@rule("E3")
def test_an_error_of_the_runtime_keeps_its_status_and_gets_our_form(stack: Stack) -> None:
    response = post(stack, chat(messages=[{"role": "user", "content": "do=status:422"}]))
    assert response.status_code == 422
    assert "422" in error_of(response)["message"]


@rule("E3", "E11")
def test_a_stream_that_the_runtime_cuts_ends_in_one_error_event_and_never_looks_complete(stack: Stack) -> None:
    response = post(stack, chat(stream=True, messages=[{"role": "user", "content": "do=cut:3 tokens=9"}]))
    assert response.status_code == 200
    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    errors = [event for event in events if "error" in json.loads(event)]
    assert len(errors) == 1
    assert events[-1] == errors[0]
    assert "[DONE]" not in response.text
    assert json.loads(errors[0])["error"]["code"] == "upstream_error"
