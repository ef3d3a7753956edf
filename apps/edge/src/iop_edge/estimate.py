"""A cheap estimate of input tokens: it chooses the size class, and refuses only what cannot possibly fit (E10)."""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["Estimate", "estimate_tokens", "fewest_tokens"]

Estimate = int

_ASCII_PER_TOKEN = 4
# Hangul, kana and Han take between half a token and one each with current vocabularies.
_OTHER_TOKENS_PER_10 = 7
# The longest tokens of known vocabularies are runs of 128 blanks or signs.
_LONGEST_TOKEN = 128
# Hardly a vocabulary joins words into one token, and none joins more than a few.
_WORDS_PER_TOKEN = 4
_BASE64 = re.compile(rb"[A-Za-z0-9+/=_\\-]{2048,}")
# An image or a sound costs the runtime a bounded number of tokens, whatever its bytes.
_ATTACHMENT_TOKENS = 1024


def estimate_tokens(parts: Iterable[bytes]) -> Estimate:
    """Return about how many tokens these pieces of JSON hold; the punctuation stands for the chat template.

    Linear, at about a tenth of a nanosecond per byte of ASCII; no JSON is parsed. Base64 counts as an attachment.
    """
    total = 0
    for part in parts:
        text = part
        if len(part) > 4096 and b"base64" in part:
            text, found = _BASE64.subn(b"", part)
            total += found * _ATTACHMENT_TOKENS
        escaped = text.count(b"\\u")
        if escaped or not text.isascii():
            # Each \uXXXX and each UTF-8 lead byte is one character; a surrogate pair counts as two: near enough.
            ascii_bytes = len(text.translate(None, _NOT_ASCII))
            leads = len(text) - ascii_bytes - len(text.translate(None, _NOT_CONTINUATION))
            total += ((escaped + leads) * _OTHER_TOKENS_PER_10) // 10
            total += max(0, ascii_bytes - 6 * escaped) // _ASCII_PER_TOKEN
        else:
            total += len(text) // _ASCII_PER_TOKEN
    return total


_NOT_ASCII = bytes(range(0x80, 0x100))
_NOT_CONTINUATION = bytes(range(0x80)) + bytes(range(0xC0, 0x100))


def fewest_tokens(parts: Iterable[bytes]) -> int:
    """Return a number of tokens below which no tokenizer can bring these pieces: words and bytes bound it.

    Slower than the estimate (it counts words): ask only when the estimate is above the window.
    """
    total = 0
    for part in parts:
        text = _BASE64.sub(b"", part) if b"base64" in part else part
        total += max(len(text) // _LONGEST_TOKEN, len(text.split()) // _WORDS_PER_TOKEN)
    return total
