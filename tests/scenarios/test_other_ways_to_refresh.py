"""SIGHUP, `run --watch`, rollback and last-good: the same refresh by other doors, on a running Edge."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from support.rules import rule
from support.stack import BIN, Stack, eventually, openai_config, pairs, running


def config_of(stack: Stack, capacity: int) -> str:
    return openai_config(stack.token_hash, base_url="http://127.0.0.1:9", capacity=capacity)


def capacity(stack: Stack) -> int:
    return int(stack.provider("p")["capacity"])


@rule("R13")
def test_sighup_applies_the_file_and_a_broken_one_is_only_logged(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        edge = stack.edge(config_of(stack, 1))
        stack.config.write_text(config_of(stack, 3))
        edge.send(signal.SIGHUP)
        eventually("the new capacity", lambda: capacity(stack) == 3)
        stack.config.write_text("edge: [")
        edge.send(signal.SIGHUP)
        eventually("the log says why", lambda: "edge.yaml:1" in edge.output)
        assert edge.alive()
        assert capacity(stack) == 3


@rule("R13", "R11")
def test_run_watch_applies_whatever_way_the_file_is_changed(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        stack.config.write_text(config_of(stack, 1))
        edge = stack.spawn("edge", str(BIN / "iop-edge"), "run", "--watch")
        stack.addresses = pairs(edge.wait_for("iop-edge: ready"))
        # Written in place.
        stack.config.write_text(config_of(stack, 2))
        eventually("written in place", lambda: capacity(stack) == 2)
        # Replaced by a rename, as editors do.
        other = tmp_path / "edge.yaml.new"
        other.write_text(config_of(stack, 3))
        os.replace(other, stack.config)
        eventually("replaced", lambda: capacity(stack) == 3)
        # A symlink that is switched, as a mounted ConfigMap does.
        for number, name in ((4, "one"), (5, "two")):
            (tmp_path / name).mkdir()
            (tmp_path / name / "edge.yaml").write_text(config_of(stack, number))
            link = tmp_path / "link"
            link.symlink_to(tmp_path / name / "edge.yaml")
            os.replace(link, stack.config)
            eventually(f"switched to {name}", lambda number=number: capacity(stack) == number)  # type: ignore[misc]
        # Broken, then right again: a failure does not end the watching.
        stack.config.write_text("edge: [")
        eventually("the log says why", lambda: "rejected" in edge.output)
        stack.config.write_text(config_of(stack, 6))
        eventually("right again", lambda: capacity(stack) == 6)


@rule("R15")
def test_rollback_goes_back_to_the_config_before_and_refuses_when_there_is_none(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        stack.edge(config_of(stack, 1))
        code, text = stack.iop_edge("config", "rollback")
        assert code == 4, text
        stack.config.write_text(config_of(stack, 3))
        assert stack.iop_edge("config", "refresh")[0] == 0
        code, text = stack.iop_edge("config", "rollback", "--output", "json")
        assert code == 0, text
        assert json.loads(text)["live_paths"] == ["nodes[box].providers[p].capacity"]
        assert capacity(stack) == 1


@rule("R15")
def test_a_broken_file_at_the_start_names_the_config_that_was_good_and_last_good_starts_from_it(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        edge = stack.edge(config_of(stack, 2))
        edge.send(signal.SIGTERM)
        assert edge.wait(20) == 0
        stack.processes.remove(edge)
        stack.config.write_text(config_of(stack, 2).replace("capacity", "capacitee"))
        code, text = stack.iop_edge("run")
        assert code == 4
        assert "--last-good" in text
        assert str(tmp_path / "state") in text
        edge = stack.spawn("edge", str(BIN / "iop-edge"), "run", "--last-good")
        stack.addresses = pairs(edge.wait_for("iop-edge: ready"))
        assert capacity(stack) == 2


@rule("R15", "C25")
def test_last_good_is_found_where_the_broken_file_says_that_the_state_lies(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        del stack.env["IOP_STATE_DIR"]
        stack.env["XDG_STATE_HOME"] = str(tmp_path / "elsewhere")
        config = config_of(stack, 2).replace("edge: {id: test}", "edge:\n  id: test\n  state_dir: ./kept")
        edge = stack.edge(config)
        edge.send(signal.SIGTERM)
        assert edge.wait(20) == 0
        stack.processes.remove(edge)
        stack.config.write_text(config.replace("capacity", "capacitee"))
        code, text = stack.iop_edge("run")
        assert code == 4
        assert str(tmp_path / "kept") in text
        edge = stack.spawn("edge", str(BIN / "iop-edge"), "run", "--last-good")
        stack.addresses = pairs(edge.wait_for("iop-edge: ready"))
        assert capacity(stack) == 2


@rule("C25", "C21")
def test_the_version_of_a_config_is_the_same_after_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        stack.env["SECRET_URL"] = "http://127.0.0.1:9"
        config = openai_config(stack.token_hash, base_url="${SECRET_URL}", capacity=1)
        versions = []
        for _ in range(2):
            edge = stack.edge(config)
            versions.append(stack.status()["config_version"])
            edge.send(signal.SIGTERM)
            assert edge.wait(20) == 0
            stack.processes.remove(edge)
        assert versions[0] == versions[1]
        assert oct((tmp_path / "state" / "digest.key").stat().st_mode & 0o777) == "0o600"
