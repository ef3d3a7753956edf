"""Usage: one record per admitted request, written behind the request's back, and counters with bounded labels (E9)."""

from __future__ import annotations
