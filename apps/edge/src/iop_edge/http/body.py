"""Request bodies: read within bounds, parsed once into untouched pieces, checked for what the Edge needs."""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import msgspec
from starlette.types import Message, Receive

from iop_edge.errors import ApiError

__all__ = ["BODY_BYTES", "BODY_PROGRESS", "parse_body", "read_body"]

BODY_BYTES = 64 * 1024 * 1024
BODY_PROGRESS = 30.0

Body = Mapping[str, msgspec.Raw]
_decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_KINDS = {b"[": "an array", b"{": "an object", b'"': "a string", b"t": "a boolean", b"f": "a boolean", b"n": "null"}


async def read_body(
    receive: Receive,
    headers: Mapping[bytes, bytes],
    *,
    limit: int = BODY_BYTES,
    progress: float = BODY_PROGRESS,
    complete: bool = False,
) -> bytes:
    """Return the whole body; `complete`: it is known to be there already.

    Raises ApiError 413 above `limit` bytes, 408 when nothing comes for `progress` seconds, and `client_gone`.
    """
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise ApiError("invalid_request", "content-encoding: a compressed body is not understood; send it plain")
    announced = headers.get(b"content-length", b"")
    # More digits than the limit has are more than the limit: no number of a thousand digits is computed.
    if announced.isdigit() and (len(announced) > 18 or int(announced) > limit):
        raise _too_large(limit)
    pieces: list[bytes] = []
    size = 0
    while True:
        message: Message | None
        if complete:
            message = await receive()
        else:
            message = await _next(receive, progress)
        if message is None:
            raise ApiError("body_timeout", f"the body did not go on within {progress:g} s; send it without a pause")
        if message["type"] == "http.disconnect":
            raise ApiError("client_gone", "the client left while it sent its request")
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        if not message.get("more_body", False) and not pieces:
            return piece
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


async def _next(receive: Receive, progress: float) -> Message | None:
    with anyio.move_on_after(progress):
        return await receive()
    return None


def _too_large(limit: int) -> ApiError:
    return ApiError("body_too_large", f"the body is larger than {limit} bytes, which is the most that is taken")


def parse_body(data: bytes) -> Body:
    """Return the body's top-level keys, each with its bytes as they came.

    Raises ApiError 400 where it is not one JSON object in UTF-8.
    """
    try:
        body = _decode(data)
        if not data.isascii():
            data.decode()
    except msgspec.ValidationError:
        kind = _KINDS.get(data.lstrip()[:1], "a number")
        raise ApiError("invalid_json", f"the body is {kind}; it must be a JSON object") from None
    except msgspec.DecodeError as error:
        raise ApiError("invalid_json", f"the body is not JSON: {_plain(str(error))}") from None
    except UnicodeDecodeError as error:
        raise ApiError("invalid_json", f"the body is not UTF-8 (byte {error.start})") from None
    except RecursionError:
        raise ApiError("invalid_json", "the body is nested too deeply") from None
    return body


def _plain(text: str) -> str:
    # msgspec words the place and the kind, never the data; only its beginning is changed to fit in our sentence.
    text = text.removeprefix("JSON is malformed: ")
    return "it ends too early" if text == "Input data was truncated" else text


def text_of(body: Body, key: str) -> str:
    """Return a required, non-empty string. Raises ApiError 400 with the `param`."""
    raw = body.get(key)
    if raw is None:
        raise ApiError("missing_parameter", f"{key}: it is missing; a string is needed", param=key)
    try:
        value = msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, RecursionError):
        raise ApiError("invalid_request", f"{key}: {kind_of(raw)}; a string is needed", param=key) from None
    if not value:
        raise ApiError("invalid_request", f"{key}: it is empty; a name is needed", param=key)
    return value


def flag_of(body: Body, key: str) -> bool:
    """Return an optional boolean; absent and null are false. Raises ApiError 400 with the `param`."""
    raw = bytes(body.get(key, b"false"))
    if raw == b"true":
        return True
    if raw in (b"false", b"null"):
        return False
    raise ApiError("invalid_request", f"{key}: {kind_of(raw)}; true or false is needed", param=key)


def require_messages(body: Body, key: str = "messages") -> None:
    """Check that `key` is a non-empty array of objects, as far as its beginning shows. Raises ApiError 400."""
    raw = body.get(key)
    if raw is None:
        raise ApiError("missing_parameter", f"{key}: it is missing; an array of messages is needed", param=key)
    text = bytes(raw)
    if not text.startswith(b"["):
        raise ApiError("invalid_request", f"{key}: {kind_of(raw)}; an array of messages is needed", param=key)
    first = text[1:64].lstrip()[:1] or text[1:].lstrip()[:1]
    if first == b"]":
        raise ApiError("invalid_request", f"{key}: it is empty; at least one message is needed", param=key)
    if first != b"{":
        raise ApiError("invalid_request", f"{key}[0]: {kind_of(first)}; a message is an object", param=key)


def require_input(body: Body, key: str, *, instead: tuple[str, ...] = ()) -> None:
    """Check that `key` is a string or a non-empty array, or that one of `instead` is there. Raises ApiError 400."""
    raw = body.get(key)
    if raw is None or bytes(raw[:4] if isinstance(raw, bytes) else raw) == b"null":
        if any(other in body for other in instead):
            return
        raise ApiError("missing_parameter", f"{key}: it is missing; a string or an array is needed", param=key)
    text = bytes(raw)
    if text[:1] not in (b'"', b"["):
        raise ApiError("invalid_request", f"{key}: {kind_of(raw)}; a string or an array is needed", param=key)
    if text[:1] == b"[" and text[1:].lstrip()[:1] == b"]":
        raise ApiError("invalid_request", f"{key}: it is empty; something to work on is needed", param=key)


def include_usage(body: Body) -> bool:
    """Return whether the client asked for the usage chunk of a stream. Raises ApiError 400 for a wrong type."""
    raw = body.get("stream_options")
    if raw is None or bytes(raw) == b"null":
        return False
    try:
        options = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, RecursionError):
        raise ApiError(
            "invalid_request", f"stream_options: {kind_of(raw)}; an object is needed", param="stream_options"
        ) from None
    return bytes(options.get("include_usage", b"")) == b"true"


def kind_of(raw: bytes | msgspec.Raw) -> str:
    """Name the JSON kind of a value, for messages; the value itself is never shown."""
    return f"it is {_KINDS.get(bytes(raw)[:1], 'a number')}"
