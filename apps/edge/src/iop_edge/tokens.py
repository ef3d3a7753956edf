"""Secrets that IOP hands out: how they are made and what the config keeps of them (E4, C14, wire §3)."""

from __future__ import annotations

import hashlib
import secrets

API_KEY_PREFIX = "iopk_"
NODE_TOKEN_PREFIX = "iopn_"


def new_token(prefix: str) -> str:
    """Return 32 random bytes as text; the prefix lets scanners find a leaked one."""
    return prefix + secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """Return the sha256 that the config holds; a token has full entropy, so no slow hash is needed."""
    return hashlib.sha256(token.encode()).hexdigest()
