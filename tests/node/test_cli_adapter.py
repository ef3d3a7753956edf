"""The `cli` adapter with real commands: answers on every surface, sessions, failures in words, probes (N5, N9)."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import iop_node.adapters.cli as cli_module
from iop_node.adapters.base import AdapterContext, BuildError, ProbeTarget
from iop_node.adapters.chat import ChatMessage
from iop_node.adapters.cli import CliAdapter
from iop_node.adapters.cli_process import StartError
from iop_node.adapters.cli_prompt import arguments, last_words, redact, tokens, whole_prompt
from iop_node.link import Health, RunError, Usage
from iop_node.settings import AdapterSettings, CliSettings, SecretPair
from support.adapters import Recorder, execute, failure, order
from support.rules import rule

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent
FAKE = str(HERE.parent / "support" / "fake_cli.py")
SECRET = "hunter2-correct-horse"


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder under which runs get theirs; empty again after each test."""
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def cli(*words: str, **fields: Any) -> CliSettings:
    """Settings that start the fake command."""
    made = {"output_format": "jsonl", **fields}
    return CliSettings(sys.executable, ("-ISE", FAKE, *words), **made)


@asynccontextmanager
async def adapter_of(settings: CliSettings, folder: Path) -> AsyncIterator[CliAdapter]:
    """An adapter, closed at the end."""
    adapter = CliAdapter(AdapterSettings("a", "cli", settings), AdapterContext(folder))
    try:
        yield adapter
    finally:
        await adapter.close()


def says(*turns: str, **body: Any) -> dict[str, Any]:
    """A chat body: user and assistant in turn."""
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[at % 2], "content": text} for at, text in enumerate(turns)], **body}


async def answer(adapter: CliAdapter, *turns: str, **fields: Any) -> str:
    """The answer to a conversation, not streamed."""
    got = await execute(adapter, order(body=says(*turns), streaming=False, **fields))
    content = got.json["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content


async def fails(settings: CliSettings, folder: Path, *turns: str, **fields: Any) -> RunError:
    """Why a run fails."""
    async with adapter_of(settings, folder) as adapter:
        return await failure(adapter, order(body=says(*(turns or ("hello",))), **fields))


# -- answers ----------------------------------------------------------------------------------------------------------


@rule("N5", "N9", "E9")
async def test_a_chat_stream_says_what_the_command_says(tmp_path: Path) -> None:
    async with adapter_of(cli("chat"), tmp_path) as adapter:
        got = await execute(adapter, order(body=says("hello"), include_usage=True))
    assert got.was_contacted
    assert got.heads == [(200, {"content-type": "text/event-stream"})]
    first, *_, last, usage, done = got.events
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert got.text == "heard 1: hello"
    assert last["choices"][0]["finish_reason"] == "stop"
    assert (usage["choices"], usage["usage"]["total_tokens"], done) == ([], 13, "[DONE]")
    assert got.usage == Usage(10, 3, from_runtime=True)


@rule("N5", "E2")
async def test_every_chat_surface_gets_the_answer_in_its_form(tmp_path: Path) -> None:
    async with adapter_of(cli("chat"), tmp_path) as adapter:
        chat = (await execute(adapter, order(body=says("hello"), streaming=False))).json
        responses = (await execute(adapter, order("responses", {"input": "hello"}, streaming=False))).json
        messages = (await execute(adapter, order("messages", says("hello"), streaming=False))).json
        streamed = await execute(adapter, order("messages", says("hello")))
    assert chat["choices"][0]["message"] == {"role": "assistant", "content": "heard 1: hello"}
    assert responses["output"][0]["content"][0]["text"] == "heard 1: hello"
    assert responses["usage"]["input_tokens"] == 10
    assert messages["content"] == [{"type": "text", "text": "heard 1: hello"}]
    assert streamed.events[-1] == {"type": "message_stop"}


@rule("E2")
@pytest.mark.parametrize("operation", ["embeddings", "completions", "count_tokens"])
async def test_what_a_command_cannot_do_is_no_endpoint_of_it(tmp_path: Path, operation: str) -> None:
    async with adapter_of(cli("chat"), tmp_path) as adapter:
        error = await failure(adapter, order(operation, {"input": "x"}, streaming=False))
    assert (error.code, error.outcome, error.maybe_executed) == ("unsupported_endpoint", "client_error", False)


async def test_an_image_is_refused_rather_than_left_out(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    async with adapter_of(cli("chat"), tmp_path) as adapter:
        error = await failure(adapter, order(body={"messages": [{"role": "user", "content": parts}]}))
    assert error.upstream_status == 400
    assert "text only" in error.message


@rule("N5", "N9")
@pytest.mark.parametrize(
    ("name", "form", "text", "usage"),
    [
        ("claude-partial", "claude-stream-json", "Hello, 세계", Usage(1012, 7, 900, from_runtime=True)),
        ("codex-plain", "codex-jsonl", "I listed them.\n\nThere are two files.", Usage(5120, 31, 4096, True)),
        ("gemini-plain", "gemini-stream-json", "I will look.\n\nTwo.", Usage(120, 20, 64, True)),
        ("opencode-plain", "opencode-json", "I read it.\n\nIt has one line.", Usage(1840, 33, 1000, True)),
    ],
)
async def test_the_recorded_tools_answer_streamed_and_whole(
    tmp_path: Path, name: str, form: str, text: str, usage: Usage
) -> None:
    settings = cli("play", str(HERE / "transcripts" / f"{name}.jsonl"), "0", output_format=form)
    async with adapter_of(settings, tmp_path) as adapter:
        streamed = await execute(adapter)
        whole = await execute(adapter, order(streaming=False))
    assert streamed.text == text
    message = whole.json["choices"][0]["message"]
    assert message["content"] == text
    assert message.get("reasoning_content") == message.get("reasoning")
    assert streamed.usage == whole.usage == usage


@rule("E9")
async def test_a_command_that_does_not_count_is_counted_by_us(tmp_path: Path) -> None:
    async with adapter_of(cli("echo", output_format="text"), tmp_path) as adapter:
        got = await execute(adapter, order(body=says("word " * 40)))
    assert got.text == "word " * 40
    assert got.usage == Usage(5, 50, from_runtime=False)


# -- what it is given -------------------------------------------------------------------------------------------------


@rule("N5", "C1")
async def test_a_run_has_a_fresh_folder_and_an_environment_without_the_nodes_secrets(
    tmp_path: Path, temp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IOP_NODE_TOKEN", SECRET)
    settings = cli("facts", "-m", "{model}", output_format="text", env=(SecretPair("API_KEY", "k" * 9),))
    async with adapter_of(settings, tmp_path) as adapter:
        told = [json.loads(await answer(adapter, "hi")) for _ in range(2)]
    assert told[0]["cwd"] != told[1]["cwd"]
    assert all(Path(entry["cwd"]).parent == temp for entry in told)
    assert not any(os.path.exists(entry["cwd"]) for entry in told)
    assert told[0]["argv"] == ["-m", "served"]
    assert told[0]["stdin"] == "hi"
    env = told[0]["env"]
    assert env["API_KEY"] == "k" * 9
    assert (env["IOP_MODEL"], env["IOP_RUN_ID"]) == ("served", "01RUN")
    assert SECRET not in str(told)


@rule("N5")
async def test_a_prompt_by_argument_leaves_stdin_closed(tmp_path: Path) -> None:
    settings = cli("facts", output_format="text", prompt="argument", working_dir=str(tmp_path))
    async with adapter_of(settings, tmp_path) as adapter:
        told = json.loads(await answer(adapter, "--do-harm"))
    assert (told["argv"], told["stdin"], told["cwd"]) == ([" --do-harm"], "", str(tmp_path))
    assert tmp_path.exists(), "a folder that was given is not ours to remove"


async def test_what_a_run_leaves_behind_is_removed_whatever_it_is(tmp_path: Path, temp: Path) -> None:
    async with adapter_of(cli("litter", output_format="text"), tmp_path) as adapter:
        assert await answer(adapter, "hi")
    assert list(temp.iterdir()) == []
    assert Path("/etc").is_dir()


def test_the_places_in_the_arguments() -> None:
    def made(*args: str, session: str = "", prompt: str = "ask {model}", **fields: Any) -> tuple[str, ...]:
        settings = CliSettings("x", args, ("resume", "{session_id}"), **fields)
        return arguments(settings, model="m", prompt=prompt, session_id=session)

    assert made("a", "{model}") == ("a", "m")
    assert made("a", session="s") == ("a", "resume", "s")
    assert made("a", "{resume}", "-") == ("a", "-")
    assert made("a", "{resume}", "-", session="s") == ("a", "resume", "s", "-")
    assert made("a", session="s", prompt="p", mode="session") == ("a", "resume", "s")
    by_argument = {"prompt": "q"}
    settings = CliSettings("x", ("-p", "{prompt}", '{"a": {x}}'), prompt="argument")
    assert arguments(settings, model="m", **by_argument) == ("-p", "q", '{"a": {x}}')
    settings = CliSettings("x", ("-p",), ("-r", "{session_id}"), prompt="argument")
    assert arguments(settings, model="m", prompt="ask {model}", session_id="s") == ("-p", "-r", "s", "ask {model}")
    assert arguments(settings, model="m", prompt="-x", session_id="-s") == ("-p", "-r", " -s", " -x")


@pytest.mark.parametrize("prompt", ["x" * 200_000, "한" * 50_000, "a\0b"])
def test_a_prompt_that_no_argument_holds_is_the_requests_fault(prompt: str) -> None:
    with pytest.raises(StartError) as caught:
        arguments(CliSettings("x", prompt="argument"), model="m", prompt=prompt)
    assert caught.value.request_fault


def test_a_conversation_as_one_prompt() -> None:
    def prompt(*turns: tuple[str, str]) -> str:
        return whole_prompt(tuple(ChatMessage(role, text) for role, text in turns))

    assert prompt(("user", "why?")) == "why?"
    assert prompt(("system", "be brief"), ("user", "why?")) == "be brief\n\nwhy?"
    several = prompt(("system", "be brief"), ("user", "hi"), ("assistant", "hello"), ("user", "why?"))
    assert several.startswith("be brief\n\nThis is a conversation so far.")
    assert several.endswith("User: hi\n\nAssistant: hello\n\nUser: why?")


# -- sessions ---------------------------------------------------------------------------------------------------------

SESSION: dict[str, Any] = {"mode": "session", "resume_args": ("--resume", "{session_id}")}


@rule("N5")
async def test_a_conversation_goes_on_in_its_session_with_only_what_is_new(tmp_path: Path) -> None:
    async with adapter_of(cli("chat", **SESSION), tmp_path) as adapter:
        first = await answer(adapter, "one")
        second = await answer(adapter, "one", first, "two")
        third = await answer(adapter, "one", first, "two", f"  {second}\n", "three")
        assert (first, second, third) == ("heard 1: one", "heard 2: one / two", "heard 3: one / two / three")
        assert len(list((tmp_path / "sessions").iterdir())) == 1
        # An earlier point of it is another conversation: it starts anew, with everything that was said.
        again = await answer(adapter, "one", first, "other")
        assert again.startswith("heard 1: This is a conversation")
        assert again.endswith(f"User: one\n\nAssistant: {first}\n\nUser: other")
    assert list((tmp_path / "sessions").iterdir()) == []


@rule("N5")
async def test_two_that_said_the_same_never_share_a_session(tmp_path: Path) -> None:
    async with adapter_of(cli("chat", **SESSION), tmp_path) as adapter:
        first = await answer(adapter, "one")
        both = await asyncio.gather(answer(adapter, "one", first, "a"), answer(adapter, "one", first, "b"))
    assert both[0] == "heard 2: one / a"
    assert both[1].startswith("heard 1: This is a conversation")


@rule("N5")
async def test_a_response_is_continued_by_its_id(tmp_path: Path) -> None:
    async def respond(adapter: CliAdapter, run_id: str, text: str, previous: str | None) -> dict[str, Any]:
        body = {"input": text} | ({"previous_response_id": previous} if previous else {})
        return (await execute(adapter, order("responses", body, streaming=False, run_id=run_id))).json

    async with adapter_of(cli("chat", **SESSION), tmp_path) as adapter:
        first = await respond(adapter, "R1", "one", None)
        second = await respond(adapter, "R2", "two", first["id"])
        assert second["output"][0]["content"][0]["text"] == "heard 2: one / two"
        assert second["id"] != first["id"]
        for unknown in (first["id"], "s-1", "latest"):
            error = await failure(
                adapter, order("responses", {"input": "x", "previous_response_id": unknown}, streaming=False)
            )
            assert (error.code, error.upstream_status) == ("previous_response_not_found", 400)
        # A turn that failed costs the client neither the session nor the id.
        body = {"input": "fail", "previous_response_id": second["id"]}
        await failure(adapter, order("responses", body, streaming=False, run_id="R3"))
        third = await respond(adapter, "R4", "three", second["id"])
        assert third["output"][0]["content"][0]["text"] == "heard 4: one / two / fail / three"


async def test_a_chat_names_its_session_in_the_metadata(tmp_path: Path) -> None:
    async with adapter_of(cli("chat", **SESSION), tmp_path) as adapter:
        streamed = await execute(adapter, order(body=says("one")))
        named = streamed.events[-2]["metadata"]["session_id"]
        body = says("two", metadata={"session_id": named})
        second = await execute(adapter, order(body=body, streaming=False))
        assert second.json["choices"][0]["message"]["content"] == "heard 2: one / two"
        # Metadata is the client's own: an id that is not ours means nothing.
        third = await execute(adapter, order(body=says("x", metadata={"session_id": "trace-7"}), streaming=False))
        assert third.json["choices"][0]["message"]["content"] == "heard 1: x"


@rule("N5", "N9")
async def test_a_session_that_the_command_forgot_is_told_anew(tmp_path: Path) -> None:
    async with adapter_of(cli("chat", **SESSION), tmp_path) as adapter:
        first = await answer(adapter, "one")
        (folder,) = (tmp_path / "sessions").iterdir()
        for file in folder.iterdir():
            file.unlink()
        second = await answer(adapter, "one", first, "two")
        assert second.startswith("heard 1: This is a conversation")
        third = await answer(adapter, "one", first, "two", second, "three")
        assert third.startswith("heard 2: ")


async def test_what_an_earlier_process_left_of_its_sessions_is_removed(tmp_path: Path) -> None:
    (tmp_path / "sessions" / "1-left").mkdir(parents=True)
    async with adapter_of(cli("chat", **SESSION), tmp_path) as adapter:
        await answer(adapter, "one")
        assert [entry.name.split("-")[0] for entry in (tmp_path / "sessions").iterdir()] == [str(os.getpid())]


async def test_without_sessions_a_previous_response_is_refused(tmp_path: Path) -> None:
    async with adapter_of(cli("chat"), tmp_path) as adapter:
        error = await failure(adapter, order("responses", {"input": "x", "previous_response_id": "resp_1"}))
    assert error.upstream_status == 400
    assert "mode: session" in error.message


# -- failures ---------------------------------------------------------------------------------------------------------


@rule("N9", "C1")
async def test_a_failure_says_what_stderr_said_without_a_secret(tmp_path: Path) -> None:
    settings = cli("complain", "3", f"no quota for {SECRET}", env=(SecretPair("TEST_SECRET", SECRET),))
    error = await fails(settings, tmp_path)
    assert "it exited with code 3" in error.message
    assert "no quota for <redacted> | password: <redacted>" in error.message
    assert (error.retryable, error.maybe_executed, error.outcome) == (False, True, "broken")
    assert SECRET not in repr(error) + repr(settings.env)


@rule("N9", "P14", "E3")
@pytest.mark.parametrize(
    ("name", "form", "code", "status", "outcome"),
    [
        ("claude-api-error", "claude-stream-json", 1, 529, "busy"),
        ("claude-max-turns", "claude-stream-json", 1, 400, "client_error"),
        ("codex-failed", "codex-jsonl", 1, 401, "broken"),
        ("gemini-not-found", "gemini-stream-json", 148, 404, "client_error"),
        ("opencode-error", "opencode-json", 1, 429, "busy"),
        ("qwen-api-error", "claude-stream-json", 0, None, "broken"),
        ("gemini-interrupted", "gemini-stream-json", 0, None, "broken"),
    ],
)
async def test_the_status_of_the_api_behind_a_command_comes_through(
    tmp_path: Path, name: str, form: str, code: int, status: int | None, outcome: str
) -> None:
    settings = cli("play", str(HERE / "transcripts" / f"{name}.jsonl"), str(code), output_format=form)
    error = await fails(settings, tmp_path)
    assert (error.upstream_status, error.outcome) == (status, outcome)
    assert (error.retryable, error.maybe_executed) == (False, True)
    if status == 404:
        assert b"model" in error.upstream_body


@rule("N9", "E3")
async def test_an_error_before_the_first_word_leaves_the_stream_unopened(tmp_path: Path) -> None:
    settings = cli(
        "play", str(HERE / "transcripts" / "claude-api-error.jsonl"), "1", output_format="claude-stream-json"
    )
    recorder = Recorder()
    async with adapter_of(settings, tmp_path) as adapter:
        await failure(adapter, order(), recorder)
    assert recorder.heads == []


@rule("E13")
async def test_an_overflow_that_a_command_tells_is_the_requests_fault(tmp_path: Path) -> None:
    file = tmp_path / "overflow.jsonl"
    file.write_text('{"type": "error", "message": "prompt is too long: 9000 tokens > 8000 maximum"}\n')
    error = await fails(cli("play", str(file), "1"), tmp_path)
    assert (error.upstream_status, error.outcome) == (400, "client_error")


@rule("N5")
async def test_a_flood_ends_the_run(tmp_path: Path) -> None:
    error = await fails(cli("flood", max_output_bytes=1_000_000), tmp_path)
    assert error.code == "output_limit"
    assert "max_output_bytes (1000000)" in error.message


@rule("N5", "E7")
async def test_a_command_that_is_not_there_leaves_the_run_to_another_provider(tmp_path: Path) -> None:
    error = await fails(CliSettings("no-such-command"), tmp_path)
    assert 'no command "no-such-command" in the PATH' in error.message
    assert (error.retryable, error.maybe_executed, error.outcome) == (True, False, "broken")
    error = await fails(cli("echo", working_dir=str(tmp_path / "none")), tmp_path)
    assert "the working folder cannot be used" in error.message


async def test_a_prompt_too_long_for_an_argument_is_told_to_the_client(tmp_path: Path) -> None:
    error = await fails(cli("facts", prompt="argument"), tmp_path, "x" * 200_000)
    assert (error.upstream_status, error.outcome, error.maybe_executed) == (400, "client_error", False)
    assert "`prompt: stdin` has no limit" in error.message


@rule("N9")
async def test_a_command_that_stays_after_its_last_word_has_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_module, "_EXIT_S", 0.1)
    async with adapter_of(cli("lingers"), tmp_path) as adapter:
        assert await answer(adapter, "hi") == "done"


@rule("N5", "N8", "E9")
async def test_a_cancel_ends_the_group_and_removes_the_folder(tmp_path: Path, temp: Path) -> None:
    recorder = Recorder()
    async with adapter_of(cli("slow"), tmp_path) as adapter:
        running = asyncio.ensure_future(adapter.run(order(), recorder))
        async with asyncio.timeout(5):
            await recorder.first.wait()
            running.cancel()
            await asyncio.wait([running])
        assert running.cancelled()
    assert recorder.usage is not None
    assert recorder.usage.output_tokens > 0
    assert not recorder.usage.from_runtime
    assert list(temp.iterdir()) == []


# -- settings and probes ----------------------------------------------------------------------------------------------


@rule("N3", "N5")
@pytest.mark.parametrize(
    ("settings", "path"),
    [
        (CliSettings(""), "cli.command"),
        (CliSettings("x", output_format="xml"), "cli.output_format"),
        (CliSettings("x", mode="session", resume_args=("{session_id}",)), "cli.output_format"),
        (CliSettings("x", mode="session", output_format="jsonl", resume_args=("-c",)), "cli.resume_args"),
    ],
)
async def test_settings_that_no_run_could_use_are_refused(settings: CliSettings, path: str) -> None:
    with pytest.raises(BuildError) as caught:
        CliAdapter(AdapterSettings("a", "cli", settings), AdapterContext(Path("/nonexistent")))
    assert caught.value.path == path


@rule("N7")
async def test_the_probe_looks_and_starts_nothing(tmp_path: Path) -> None:
    target = ProbeTarget("p", ("served",))
    ran = tmp_path / "ran"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {ran}\n")
    async with adapter_of(CliSettings(str(script), context_size=9000), tmp_path) as adapter:
        found = await adapter.probe(target)
        assert (found.health, found.message) == (
            Health.UNHEALTHY,
            f'"{script}" is not an executable file; give it the x permission',
        )
        script.chmod(0o755)
        found = await adapter.probe(target)
        assert (found.health, found.context_tokens) == (Health.HEALTHY, 9000)
        assert (await adapter.probe(ProbeTarget("p", context_size=4000))).context_tokens == 4000
        assert not ran.exists()
    async with adapter_of(CliSettings(str(script), working_dir=str(tmp_path / "none")), tmp_path) as adapter:
        found = await adapter.probe(target)
        assert found.health is Health.UNHEALTHY
        assert "working folder" in found.message


# -- words ------------------------------------------------------------------------------------------------------------


def test_secrets_are_taken_out_of_words() -> None:
    assert redact("key abcdef123 and abcdef", ["abcdef", "abcdef123", "yes"]) == "key <redacted> and <redacted>"
    assert redact("yes, sk-ant-api03-AbCdEf_12 Bearer abcdefgh.ij", ["yes"]) == "yes, <redacted> Bearer <redacted>"


def test_the_last_words_are_one_short_line() -> None:
    assert last_words("a\n\n\x1b[31mred\x1b[0m\nend \n") == "a | [31mred[0m | end"
    assert len(last_words("x" * 5000)) < 510


def test_tokens_are_estimated_by_script() -> None:
    assert (tokens(""), tokens("a"), tokens("word" * 25), tokens("가" * 100)) == (0, 1, 25, 70)
