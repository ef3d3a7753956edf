"""The console: read-only, guarded by Host, without outside resources, and live in a real browser (P11, P15)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from iop_edge.console import ConsoleSources, serve_console
from iop_edge.metering import Meter, RunRecord
from support.browser import CHROMIUM, browser
from support.edge_status import StatusRig
from support.fake_edge_node import config, model, node, provider
from support.listening import listening
from support.rules import rule

pytestmark = pytest.mark.anyio
HOSTILE = "<img src=x onerror=document.title='taken'>"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def rig_of(**fields: Any) -> StatusRig:
    rig = StatusRig(
        config(
            node("n1", provider("a", capacity=4), provider("off", enabled=False), **fields),
            node("n2", provider("b", capacity=2)),
            models=(model("m", "a", "b"),),
        )
    )
    rig.connect("n1")
    return rig


def record(**fields: Any) -> RunRecord:
    made: dict[str, Any] = {"time": datetime.now(UTC), "request_id": "r", "surface": "chat_completions", "model": "m"}
    return RunRecord(**{**made, **fields})


@asynccontextmanager
async def client(sources: ConsoleSources) -> AsyncIterator[httpx2.AsyncClient]:
    async with listening(serve_console, sources) as url, httpx2.AsyncClient(base_url=url, trust_env=False) as http:
        yield http


@rule("P11")
async def test_the_document_has_the_status_and_the_newest_first() -> None:
    rig, meter = rig_of(), Meter()
    for number in range(150):
        meter.record(record(request_id=str(number)))
    refreshes = [{"status": "applied", "at": "1"}, {"status": "rejected", "at": "2"}]
    sources = ConsoleSources(rig.runtime.status, meter.recent, lambda: refreshes)
    async with client(sources) as http:
        answer = await http.get("/console.json")
    assert answer.headers["cache-control"] == "no-store"
    document = answer.json()
    rows = {row["id"]: row for row in document["status"]["providers"]}
    assert (rows["a"]["status"], rows["b"]["status"]) == ("available", "disconnected")
    assert (rows["off"]["status"], rows["off"]["health"], rows["off"]["capacity"]) == ("disabled", "disabled", 0)
    assert [run["request_id"] for run in document["runs"]] == [str(number) for number in range(149, 49, -1)]
    assert [entry["at"] for entry in document["refreshes"]] == ["2", "1"]


async def test_nothing_can_be_changed_through_it() -> None:
    async with client(ConsoleSources(rig_of().runtime.status)) as http:
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            for path in ("/", "/console.json"):
                assert (await http.request(method, path)).status_code == 405, (method, path)
        assert (await http.head("/")).status_code == 200
        for path in ("/refresh", "/config", "/..%2fpage.html", "/page.html"):
            assert (await http.get(path)).status_code == 404, path


@pytest.mark.parametrize(
    ("host", "answered"),
    [
        ("127.0.0.1:19093", True),
        ("localhost:1", True),
        ("edge.localhost", True),
        ("[::1]:19093", True),
        ("10.1.2.3", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example:19093", False),
        ("localhost.evil.example", False),
        ("", False),
        ("[::1", True),
        ("[evil.example]", False),
    ],
)
async def test_a_name_that_is_not_this_machines_is_not_answered(host: str, answered: bool) -> None:
    async with client(ConsoleSources(rig_of().runtime.status)) as http:
        for path in ("/", "/console.json"):
            answer = await http.get(path, headers={"host": host})
            assert answer.status_code == (200 if answered else 403)
            assert answered or "providers" not in answer.text


async def test_the_page_needs_nothing_from_outside_and_may_ask_only_its_own_origin() -> None:
    async with client(ConsoleSources(rig_of().runtime.status)) as http:
        page = await http.get("/")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:|//)|@import|url\(""", page.text)
    assert "innerHTML" not in page.text


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: `apt-get install chromium` brings one")
async def test_in_a_real_browser_it_is_live_fits_a_phone_and_shows_text_as_text(tmp_path: Path) -> None:
    rig, meter = rig_of(alias=HOSTILE), Meter()
    meter.record(record(provider="a", principal_alias=HOSTILE, outcome="ok"))
    refreshes = [{"status": "rejected", "changed": False, "problems": [{"path": "models", "message": HOSTILE}]}]
    sources = ConsoleSources(rig.runtime.status, meter.recent, lambda: refreshes)
    async with listening(serve_console, sources) as url, browser(tmp_path) as page:
        for width, dark in ((1280, False), (390, True)):
            await page.open(url, width=width, height=1000, dark=dark)
            await page.until("document.querySelectorAll('#providers tbody tr').length === 3")
            lease = await rig.pool.acquire_lease("m")
            await page.until("document.querySelector('#runs').textContent === '1'")
            lease.release()
            await page.until("document.querySelector('#runs').textContent === '0'")
            assert await page.value("document.documentElement.scrollWidth") == width
            assert await page.value("document.images.length") == 0
            assert HOSTILE in await page.value("document.body.textContent")
            assert "taken" not in await page.value("document.title")
            light = await page.value("getComputedStyle(document.body).backgroundColor") == "rgb(245, 246, 248)"
            assert light is not dark
            await page.picture(tmp_path / f"console-{width}.png")
            assert (tmp_path / f"console-{width}.png").stat().st_size > 10_000
        assert page.errors == []
