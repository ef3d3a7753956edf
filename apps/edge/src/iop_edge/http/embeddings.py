"""Embeddings in the form that the client asked for, whatever the runtime gives (backends §4.2)."""

from __future__ import annotations

import base64
import binascii
import re
import sys
from array import array
from collections.abc import Callable

import msgspec

from iop_edge.http.body import Body

__all__ = ["fitter"]

_FIRST = re.compile(rb'"embedding"\s*:\s*(["\[])')


def fitter(body: Body) -> Callable[[bytes], bytes]:
    """Return what brings an answer into the form of `encoding_format`: floats unless the request says base64.

    An answer that has the form already, or that is none, goes through untouched: its first vector tells.
    """
    wanted = bytes(body.get("encoding_format", b"")) == b'"base64"'
    return _to_base64 if wanted else _to_floats


def _to_base64(answer: bytes) -> bytes:
    return _refit(answer, b"[", _pack)


def _to_floats(answer: bytes) -> bytes:
    return _refit(answer, b'"', _unpack)


def _refit(answer: bytes, unfit: bytes, convert: Callable[[msgspec.Raw], object]) -> bytes:
    first = _FIRST.search(answer)
    if first is None or first.group(1) != unfit:
        return answer
    try:
        top = msgspec.json.decode(answer, type=dict[str, msgspec.Raw])
        rows = msgspec.json.decode(top["data"], type=list[dict[str, msgspec.Raw]])
        data = [{**row, "embedding": convert(row["embedding"])} for row in rows]
    except (msgspec.DecodeError, KeyError, RecursionError, ValueError, binascii.Error):
        return answer  # not the form that we know: the client shall see what the runtime said
    return msgspec.json.encode({**top, "data": data})


def _pack(vector: msgspec.Raw) -> str:
    return base64.b64encode(
        _little_endian(array("f", msgspec.json.decode(vector, type=list[float]))).tobytes()
    ).decode()


def _unpack(text: msgspec.Raw) -> list[float]:
    numbers = array("f")
    numbers.frombytes(base64.b64decode(msgspec.json.decode(text, type=str), validate=True))
    return _little_endian(numbers).tolist()


def _little_endian(numbers: array[float]) -> array[float]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
