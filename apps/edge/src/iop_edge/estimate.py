"""A cheap estimate of input tokens: it chooses the size class, and refuses only what cannot possibly fit (E10).

Everything here is linear in the bytes, in C, and needs little memory: a body may have 64 MiB and a hostile author.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

__all__ = ["estimate_tokens", "fewest_tokens"]

Buffer = bytes | msgspec.Raw

_ASCII_PER_TOKEN = 4
# Hangul, kana and Han take between half a token and one each with current vocabularies.
_OTHER_TOKENS_PER_10 = 7
# The longest tokens of known vocabularies are runs of 128 blanks or signs.
_LONGEST_TOKEN = 128
# Hardly a vocabulary joins words into one token, and none joins more than a few.
_WORDS_PER_TOKEN = 4
# An image or a sound costs the runtime a bounded number of tokens, whatever its bytes.
_ATTACHMENT_TOKENS = 1024

_BLOCK = 1024
_SLICE = 1024 * 1024
_SAMPLE = 32 * 1024
_SAMPLES = 32
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=-_\\"
_ASCII = bytes(range(0x80))
_NOT_ASCII = bytes(range(0x80, 0x100))
_NOT_CONTINUATION = _ASCII + bytes(range(0xC0, 0x100))


def estimate_tokens(parts: Iterable[Buffer]) -> int:
    """Return about how many tokens these pieces of JSON hold; the punctuation stands for the chat template.

    No JSON is parsed. Long base64 in it counts as an attachment. Of a piece above 1 MiB samples are looked at.
    """
    total = 0
    for part in parts:
        view = memoryview(part)
        if len(view) <= _SLICE:
            text, attachments = _without_attachments(bytes(view))
            total += attachments * _ATTACHMENT_TOKENS + _tokens(text)
            continue
        sampled = tokens = attachments = 0
        inside = False
        for start in range(0, len(view), len(view) // _SAMPLES):
            sample = bytes(view[start : start + _SAMPLE])
            text, found = _without_attachments(sample, certain=False)
            sampled += len(sample)
            tokens += _tokens(text)
            # Base64 on both sides of the gap between two samples is one run, most likely.
            attachments += found - (inside and _is_base64(sample[:_BLOCK]))
            inside = _is_base64(sample[-_BLOCK:])
        total += tokens * len(view) // sampled + attachments * _ATTACHMENT_TOKENS
    return total


def _tokens(text: bytes) -> int:
    escaped = text.count(b"\\u")
    if not escaped and text.isascii():
        return len(text) // _ASCII_PER_TOKEN
    # Each \uXXXX and each UTF-8 lead byte is one character; a surrogate pair counts as two: near enough.
    ascii_bytes = len(text.translate(None, _NOT_ASCII))
    leads = len(text) - ascii_bytes - len(text.translate(None, _NOT_CONTINUATION))
    return (escaped + leads) * _OTHER_TOKENS_PER_10 // 10 + max(0, ascii_bytes - 6 * escaped) // _ASCII_PER_TOKEN


def fewest_tokens(parts: Iterable[Buffer], enough: int) -> int:
    """Return a number of tokens below which no tokenizer can bring these pieces: words and bytes bound it.

    Stops when it is above `enough`. Slower than the estimate (it counts words): ask only when that is too high.
    """
    size = words = 0
    for text in _slices(parts):
        # A word that a slice cuts counts twice; one in a hundred thousand is no matter.
        size += len(text)
        words += len(text.split())
        if max(size // _LONGEST_TOKEN, words // _WORDS_PER_TOKEN) > enough:
            break
    return max(size // _LONGEST_TOKEN, words // _WORDS_PER_TOKEN)


def _slices(parts: Iterable[Buffer]) -> Iterator[bytes]:
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _SLICE):
            yield _without_attachments(bytes(view[start : start + _SLICE]), certain=len(view) <= _SLICE)[0]


def _without_attachments(part: bytes, *, certain: bool = True) -> tuple[bytes, int]:
    """Drop the blocks that are base64 and nothing else; returns the rest and the number of runs of such blocks.

    `certain`: the piece is whole, so that base64 in it is announced somewhere.
    """
    if len(part) < 4 * _BLOCK or (certain and b"base64" not in part and b"input_audio" not in part):
        return part, 0
    kept: list[bytes] = []
    runs = 0
    inside = False
    for start in range(0, len(part), _BLOCK):
        block = part[start : start + _BLOCK]
        if _is_base64(block):
            runs += not inside
            inside = True
        else:
            kept.append(block)
            inside = False
    return b"".join(kept), runs


def _is_base64(block: bytes) -> bool:
    return not block.translate(None, _BASE64)
