"""`POST /refresh` as a tool uses it, and as a page in a browser would try to (R1, R4, R6, R11, R12)."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from support.rules import rule
from support.stack import Stack, openai_config, running

ALWAYS = {
    "changed_nodes",
    "changed_providers",
    "changed_models",
    "restart_required_paths",
    "live_paths",
    "changes",
    "problems",
    "nodes",
    "config_version_before",
    "config_version_after",
}


def config_of(stack: Stack, capacity: int) -> str:
    return openai_config(stack.token_hash, base_url="http://127.0.0.1:9", capacity=capacity)


def capacity(stack: Stack) -> int:
    return int(stack.provider("p")["capacity"])


@rule("R1", "R4", "R6", "R11")
def test_a_dry_run_changes_nothing_and_says_what_the_apply_then_does(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        stack.edge(config_of(stack, 1))
        stack.config.write_text(config_of(stack, 3))
        code, dry = stack.admin("POST", "/refresh", {"mode": "dry_run"})
        assert (code, dry["status"], dry["dry_run"], dry["live_applied"]) == (200, "applied", True, True)
        assert dry.keys() >= ALWAYS
        assert not [name for name in ALWAYS if dry[name] is None]
        assert dry["live_paths"] == ["nodes[box].providers[p].capacity"]
        assert capacity(stack) == 1

        code, refused = stack.admin("POST", "/refresh", {"mode": "apply", "expected_version": "0" * 64})
        assert (code, refused["status"]) == (412, "rejected")
        assert [problem["code"] for problem in refused["problems"]] == ["conflict"]
        assert capacity(stack) == 1

        seen = {"expected_version": dry["config_version_before"], "expected_candidate": dry["config_version_candidate"]}
        code, done = stack.admin("POST", "/refresh", {"mode": "apply", **seen})
        assert (code, done["status"], done["live_applied"]) == (200, "applied", True)
        assert (done["live_paths"], done["config_version_after"]) == (
            dry["live_paths"],
            dry["config_version_candidate"],
        )
        assert capacity(stack) == 3

        code, same = stack.admin("POST", "/refresh", {"mode": "apply"})
        assert (code, same["status"], same["changed"]) == (200, "applied", False)

        code, unknown = stack.admin("POST", "/refresh", {"mode": "destroy"})
        assert unknown["status"] == "rejected"
        assert [problem["code"] for problem in unknown["problems"]] == ["unknown_mode"]


@rule("R12")
def test_a_page_in_a_browser_on_the_same_machine_gets_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        stack.edge(config_of(stack, 1))
        stack.config.write_text(config_of(stack, 3))
        base = f"http://{stack.addresses['admin']}"
        json_type = {"content-type": "application/json"}
        attacks: list[tuple[str, dict[str, str], int]] = [
            ("another origin", {**json_type, "origin": "https://evil.example"}, 403),
            ("an opaque origin", {**json_type, "origin": "null"}, 403),
            ("a name that was made to point here", {**json_type, "host": "evil.example"}, 403),
            ("no name", {**json_type, "host": ""}, 403),
            ("a form", {"content-type": "application/x-www-form-urlencoded", "origin": "https://evil.example"}, 403),
            ("plain text", {"content-type": "text/plain"}, 403),
        ]
        with httpx2.Client(trust_env=False, timeout=20) as http:
            for name, headers, status in attacks:
                answer = http.post(f"{base}/refresh", content=b'{"mode": "apply"}', headers=headers)
                assert answer.status_code == status, (name, answer.text)
            assert http.get(f"{base}/refresh").status_code == 405
        assert capacity(stack) == 1


@rule("R12")
@pytest.mark.parametrize("address", ["0.0.0.0:0", "192.168.1.1:0"])
def test_the_admin_api_is_not_for_other_machines(tmp_path: Path, address: str) -> None:
    with running(tmp_path) as stack:
        text = config_of(stack, 1)
        stack.config.write_text(text.replace('admin: {listen: "127.0.0.1:0"', f'admin: {{listen: "{address}"'))
        assert address in stack.config.read_text()
        code, said = stack.iop_edge("config", "check")
        assert (code, "admin.listen" in said, "loopback" in said) == (4, True, True), said
