"""A streaming client without an SDK: every event that the Edge sent is there to be counted."""

from __future__ import annotations

import json

import httpx2

from support.fake_runtime import answer
from support.stack import Stack


def many_connections(timeout: float = 60) -> httpx2.AsyncClient:
    """An HTTP client that opens as many connections as it is asked for; `timeout` in seconds."""
    return httpx2.AsyncClient(trust_env=False, timeout=timeout, limits=httpx2.Limits(max_connections=None))


async def ask(client: httpx2.AsyncClient, stack: Stack, number: int) -> tuple[str, str]:
    """How one streaming client fared: `whole`, `event` (one error event), or `status` (an error before the stream)."""
    body = {
        "model": "m",
        "stream": True,
        "messages": [{"role": "user", "content": f"name=c{number}- tokens=40 gap_ms=20"}],
    }
    response = await client.post(f"{stack.base_url}/chat/completions", json=body)
    if response.status_code != 200:
        return "status", response.json()["error"]["code"]
    events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    if events[-1] == "[DONE]":
        chunks = [json.loads(event) for event in events[:-1]]
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
        assert text == answer(40, f"c{number}-")
        return "whole", ""
    errors = [json.loads(event)["error"]["code"] for event in events if "error" in json.loads(event)]
    assert len(errors) == 1, events[-3:]
    return "event", errors[0]
