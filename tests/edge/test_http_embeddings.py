"""Embeddings as floats or base64, whichever the client asks for and the runtime gives (E2, backends §4.2)."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import msgspec
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_edge.http.embeddings import fitter
from iop_edge.nodes.run import Chunk
from support.fake_edge_node import COMPLETED, JSON_HEAD, EdgeRig, config, node, provider
from support.rules import rule

VECTORS = [[0.5, -2.0, 0.25], [1.0, 0.0, -1.5]]


def packed(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def answer(vectors: list[Any]) -> bytes:
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    return json.dumps({"object": "list", "model": "served", "data": data, "usage": {"prompt_tokens": 2}}).encode()


def wants(form: str | None) -> dict[str, msgspec.Raw]:
    return {} if form is None else {"encoding_format": msgspec.Raw(json.dumps(form).encode())}


FLOATS, BASE64 = answer(VECTORS), answer([packed(vector) for vector in VECTORS])


@rule("E2")
@pytest.mark.parametrize(
    ("form", "given_body", "expected"),
    [
        ("base64", FLOATS, BASE64),
        ("base64", BASE64, BASE64),
        ("float", BASE64, FLOATS),
        (None, BASE64, FLOATS),
        (None, FLOATS, FLOATS),
    ],
)
def test_the_answer_gets_the_form_that_was_asked_for(form: str | None, given_body: bytes, expected: bytes) -> None:
    assert json.loads(fitter(wants(form))(given_body)) == json.loads(expected)


@rule("E2")
@pytest.mark.parametrize(
    "odd",
    [
        b"",
        b"not json",
        b'{"data":[]}',
        b'{"data":[{"embedding":[[1.0]]}]}',
        b'{"embedding":[1.0]}',
        b'{"data":{"embedding":[1]}}',
        b'{"data":[{"embedding":"@@@"}]}',
        b'{"data":[{"embedding":"AAA="}]}',
    ],
)
@pytest.mark.parametrize("form", ["base64", "float"])
def test_what_is_no_embedding_goes_through_untouched(odd: bytes, form: str) -> None:
    assert fitter(wants(form))(odd) == odd


@rule("E2")
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_there_and_back_is_the_same(vector: list[float]) -> None:
    there = fitter(wants("base64"))(answer([vector]))
    assert json.loads(fitter(wants("float"))(there))["data"][0]["embedding"] == vector


@rule("E2")
@pytest.mark.anyio
async def test_the_sdk_reads_vectors_of_a_runtime_that_knows_floats_only() -> None:
    rig = EdgeRig(config(node("n", provider("p"))), lambda run: run.emit(JSON_HEAD, Chunk(FLOATS), COMPLETED) and None)
    async with (
        rig.serving() as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as sdk,
    ):
        # The SDK asks for base64 by itself.
        made = await sdk.embeddings.create(model="m", input=["a", "b"])
    assert [entry.embedding for entry in made.data] == VECTORS
    assert rig.sessions["n"].runs[0].body["encoding_format"] == "base64"
