"""Canaries: secrets of config, clients and runtimes appear in no log, metric, status, record or answer (C23)."""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

import iop_config
from iop_edge import logs
from iop_edge.console import ConsoleSources
from iop_edge.console._server import console_json
from iop_edge.http import Deps, build_app, serve
from iop_edge.metering import Meter
from iop_edge.metrics import StatusCollector
from iop_edge.nodes.run import Chunk, Head
from iop_edge.service import RunService
from support.edge_status import StatusRig
from support.fake_edge_node import FakeRun, FakeSession, Script, answers, fails, in_turn
from support.rules import rule

pytestmark = pytest.mark.anyio

KEY = "iopk_canary-client-key"
CANARIES = {
    "client key": KEY,
    "wrong key": "sk-canary-wrong-key",
    "provider token": "canary-provider-token",
    "adapter header": "canary-adapter-header",
    "cli env": "canary-cli-env",
    "base url": "canary-base-url",
    "alias": "canary-alias",
    "target": "canary-target",
    "request text": "canary-prompt",
    "answer text": "canary-answer",
    "what a runtime quotes": "canary-quoted-key",
    "token hash": hashlib.sha256(KEY.encode()).hexdigest(),
}
CONFIG = f"""\
edge: {{id: test}}
openai:
  principal_tokens:
    - {{token_ref: ide, token_hash_sha256: {CANARIES["token hash"]}, principal_ref: team, principal_alias: search}}
  provider_auth: {{enabled: true, required: false}}
models:
  - {{id: m, providers: {{a: "${{TARGET}}", b: "${{TARGET}}"}}}}
nodes:
  - id: box
    alias: ${{ALIAS}}
    token_hash_sha256: {"ab" * 32}
    providers:
      - id: a
        type: openai_compat
        category: api
        base_url: https://${{HOST}}.example/v1
        headers: {{Authorization: "Bearer ${{HEADER}}"}}
        models: ["${{TARGET}}"]
        health: {{probe: false}}
      - id: b
        type: openai_compat
        category: api
        base_url: https://${{HOST}}.example/v1
        models: ["${{TARGET}}"]
        health: {{probe: false}}
      - {{id: c, type: cli, category: cli, command: claude, env: {{KEY: "${{ENV}}"}}, models: [sonnet]}}
"""
ENV = {
    "TARGET": CANARIES["target"],
    "ALIAS": CANARIES["alias"],
    "HOST": CANARIES["base url"],
    "HEADER": CANARIES["adapter header"],
    "ENV": CANARIES["cli env"],
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["text", "json"])
def log(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """All that the Edge would write to stderr at its most talkative level."""
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    root, ours = logging.getLogger(), logging.getLogger("iop")
    before = (root.handlers[:], root.level, ours.level)
    logs.set_up("debug", request.param)
    yield stream
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


def refuses_and_quotes(status: int) -> Script:
    """A runtime whose error repeats the key that it was sent."""
    body = json.dumps({"error": {"message": f"bad key {CANARIES['what a runtime quotes']}", "code": "bad"}}).encode()
    fields: dict[str, Any] = {"upstream_status": status, "upstream_body": body, "retryable": status >= 500}
    return fails("upstream_error", f"the runtime answered {status}", **fields)


def cut(run: FakeRun) -> None:
    """A stream that says something and ends without its end."""
    run.emit(Head(200, ()), Chunk(b"data: {}\n\n"))
    fails("upstream_error", "cut")(run)


@rule("C1", "C2", "C23", "E4", "E6")
async def test_no_secret_appears_anywhere(log: io.StringIO, tmp_path: Path) -> None:
    loaded = iop_config.load_text(CONFIG, env=ENV)
    rig = StatusRig(loaded.config, loaded.version)
    rig.connect("box")
    script = in_turn(refuses_and_quotes(500), answers(CANARIES["answer text"]), cut, refuses_and_quotes(401), explodes)
    session = FakeSession("box", script)
    registry = CollectorRegistry()
    meter = Meter(str(tmp_path / "usage.jsonl"), registry=registry)
    registry.register(StatusCollector(rig.runtime.status))
    service = RunService(
        snapshot=lambda: rig.cell.current,
        pool=rig.pool,
        session={"box": session}.get,
        generation_of=rig.fleet.acked_generation,
        meter=meter,
    )
    seen: list[str] = []
    headers = {"authorization": f"Bearer {KEY}", "x-iop-provider-authorization": CANARIES["provider token"]}
    body = {"model": "m", "messages": [{"role": "user", "content": CANARIES["request text"]}]}
    async with anyio.create_task_group() as group:
        group.start_soon(meter.run)
        app = build_app(Deps(service=service, openai=rig.cell.current.live.openai))

        async def listen(*, task_status: Any) -> None:
            await serve(app, task_status=task_status, grace=0)

        host, port = await group.start(listen)
        async with httpx2.AsyncClient(base_url=f"http://{host}:{port}/v1", headers=headers, trust_env=False) as http:

            async def ask(**fields: Any) -> httpx2.Response:
                answer = await http.post("/chat/completions", json={**body, **fields})
                seen.append(str(answer.headers))
                return answer

            failed_over = await ask()
            assert failed_over.status_code == 200
            assert CANARIES["answer text"] in failed_over.text
            streams = await ask(stream=True)
            refused = await ask()
            exploded = await ask()
            assert (streams.status_code, refused.status_code, exploded.status_code) == (200, 401, 500)
            wrong = await http.get("/models", headers={"authorization": f"Bearer {CANARIES['wrong key']}"})
            assert wrong.status_code == 401
            unknown = await ask(model=CANARIES["request text"])
            assert unknown.status_code == 404
            models = await http.get("/models")
            seen += [streams.text, refused.text, exploded.text, wrong.text, models.text]
        group.cancel_scope.cancel()
    secret = {name: value for run in session.runs for name, value in run.spec.secret_headers}
    assert secret == {"Authorization": f"Bearer {CANARIES['provider token']}"}, "else nothing was at stake"
    status = rig.runtime.status()
    sources = ConsoleSources(rig.runtime.status, meter.recent)
    kept = tmp_path / "usage.jsonl"
    seen += [
        log.getvalue(),
        generate_latest(registry).decode(),
        msgspec.json.encode(status).decode(),
        console_json(sources).decode(),
        kept.read_text(),
    ]
    everything = "\n".join(seen)
    assert [name for name, value in CANARIES.items() if value in everything] == []
    # A repr may name what the file itself says in the open, or what the wire carries in the open, and nothing else.
    reprs = "\n".join([repr(loaded.config), repr(rig.cell.current), *(repr(run.spec) for run in session.runs)])
    assert [name for name, value in CANARIES.items() if value in reprs] == ["target", "token hash"]
    ids = [json.loads(line)["request_id"] for line in kept.read_text().splitlines()]
    assert len(ids) == 4
    assert all(request_id in log.getvalue() for request_id in ids)


def explodes(run: FakeRun) -> None:
    raise RuntimeError("a defect of this edge")


async def test_a_text_from_outside_cannot_begin_a_line_of_its_own(log: io.StringIO) -> None:
    logging.getLogger("iop.edge.test").info(
        "node said %s", "x\n2026 error forged\r\x1b[2J\u2028", extra={"facts": {"a": "1\n2"}}
    )
    (line,) = log.getvalue().splitlines()
    assert "forged" in line
    assert "\x1b" not in line


async def test_json_lines_carry_the_facts_as_members(log: io.StringIO) -> None:
    logging.getLogger("iop.edge.test").warning("it ended", extra={"facts": {"request_id": "R", "level": "no"}})
    line = log.getvalue()
    if line.startswith("{"):
        members = json.loads(line)
        assert (members["request_id"], members["level"], members["message"]) == ("R", "warning", "it ended")
    else:
        assert line.rstrip().endswith("warning iop.edge.test: it ended request_id=R level=no")
