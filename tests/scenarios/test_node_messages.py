"""What a Node prints when it cannot join: one plain line that names the cause, and it goes on trying (N4, N1)."""

from __future__ import annotations

import socket
from pathlib import Path

from support.rules import rule
from support.stack import BIN, eventually, openai_config, running


def config_of(token_hash: str) -> str:
    return openai_config(token_hash, base_url="http://127.0.0.1:9", capacity=1)


@rule("N4", "N1")
def test_a_wrong_token_and_an_unknown_id_are_said_plainly_and_without_the_token(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        stack.edge(config_of("2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"))
        wrong = stack.node(wait=False)
        eventually("the cause", lambda: "token" in wrong.output)
        unknown = stack.node("nobody", wait=False)
        eventually("the cause", lambda: "nobody" in unknown.output and "token" in unknown.output)
        for node in (wrong, unknown):
            assert stack.token not in node.output
            assert node.alive()
        # Which ids exist is nobody's business: the two are told the same.
        said = [node.output.split("iop.node.link: ")[1].splitlines()[0] for node in (wrong, unknown)]
        assert said[0].split("next try")[0] == said[1].split("next try")[0]


@rule("N4")
def test_an_edge_that_is_not_there_is_waited_for_and_joined_when_it_comes(tmp_path: Path) -> None:
    with running(tmp_path) as stack, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: nobody else gets the port, and nobody answers
        port = taken.getsockname()[1]
        stack.addresses = {"grpc": f"127.0.0.1:{port}"}
        node = stack.node(wait=False)
        eventually("the cause", lambda: "nothing listens on" in node.output)
        taken.close()
        config = config_of(stack.token_hash).replace(
            'server: {listen: "127.0.0.1:0"}', f'server: {{listen: "127.0.0.1:{port}"}}'
        )
        stack.edge(config)
        node.wait_for("iop-node: ready")


@rule("N4")
def test_a_second_node_of_the_same_id_takes_over_and_both_say_so(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        edge = stack.edge(config_of(stack.token_hash))
        first = stack.node()
        second = stack.node()
        eventually("the first knows", lambda: "took the place of" in first.output)
        assert second.alive()
        assert edge.alive()


@rule("N1")
def test_a_join_line_that_is_broken_is_told_without_its_token(tmp_path: Path) -> None:
    with running(tmp_path) as stack:
        for line in ("iop1:", "iop1:127.0.0.1:1:box", f"iop2:127.0.0.1:1:box:{stack.token}"):
            process = stack.spawn("node", str(BIN / "iop-node"), "run", line)
            assert process.wait(30) == 2, process.output
            assert "Traceback" not in process.output
            assert stack.token[6:30] not in process.output
            stack.processes.remove(process)
