"""The OpenAI adapter against a runtime that sends exactly the bytes a test wants (N5, N8, E7, E11, E12, E9)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from iop_node.link import RunError, Usage
from support.adapters import Recorder, adapter_of, execute, failure, openai_settings, order
from support.rawruntime import RawRuntime, Request, Script, answers, chunk, event, raw_runtime, usage_chunk
from support.rules import rule

pytestmark = pytest.mark.anyio

SILENT = asyncio.Event()


async def hang(request: Request) -> None:
    """Say nothing until the client leaves."""
    await request.gone.wait()


async def fail(
    script: Script, kind: str = "openai_compat", recorder: Recorder | None = None, **fields: Any
) -> RunError:
    async with raw_runtime(script) as runtime, adapter_of(openai_settings(runtime.url, kind)) as adapter:
        return await failure(adapter, order(**fields), recorder)


def streams(*pieces: bytes) -> Script:
    async def script(request: Request) -> None:
        await request.stream(*pieces)

    return script


# -- streams ----------------------------------------------------------------------------------------------------------


@rule("N5", "E9", "E11")
async def test_a_stream_goes_through_and_its_usage_is_counted() -> None:
    async with raw_runtime(answers("one", " two")) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        got = await execute(adapter)
        sent = runtime.requests[0].json
    assert got.was_contacted
    assert got.heads == [(200, {"content-type": "text/event-stream"})]
    assert got.text == "one two"
    assert got.events[-1] == "[DONE]"
    assert got.usage == Usage(7, 3, from_runtime=True)
    assert sent["stream"] is True
    assert sent["stream_options"] == {"include_usage": True}
    assert all(entry["choices"] for entry in got.events[:-1]), "the usage chunk was not asked for by the client"


@rule("E9")
async def test_the_usage_chunk_goes_on_where_the_client_asked_for_it() -> None:
    body = {"messages": [], "stream_options": {"include_usage": True}}
    async with raw_runtime(answers("hi")) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        got = await execute(adapter, order(body=body, include_usage=True))
    assert got.events[-2]["usage"]["total_tokens"] == 10


async def test_other_stream_options_and_unknown_fields_survive() -> None:
    body = {"messages": [], "stream_options": {"x": 1}, "vendor": {"deep": [1.50, "é"]}}
    async with raw_runtime(answers("hi")) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        await execute(adapter, order(body=body))
        sent = runtime.requests[0].json
    assert sent["stream_options"] == {"x": 1, "include_usage": True}
    assert sent["vendor"] == {"deep": [1.5, "é"]}


@rule("E9")
async def test_without_usage_the_node_counts_as_it_goes() -> None:
    gate = asyncio.Event()

    async def script(request: Request) -> None:
        await request.begin_stream()
        for number in range(3):
            await request.piece(event(chunk(f"w{number}")))
        gate.set()
        await request.gone.wait()

    recorder = Recorder()
    async with raw_runtime(script) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        task = asyncio.ensure_future(adapter.run(order(), recorder))
        async with asyncio.timeout(5):
            await gate.wait()
            while len(recorder.events) < 3:  # noqa: ASYNC110 -- the recorder has no event for it
                await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert recorder.usage == Usage(5, 3)


@rule("E14")
@pytest.mark.parametrize(
    "noise", [b": ping\n\n", b": OPENROUTER PROCESSING\n\n", b"event: ping\ndata: {}\n\n", b"id: 4\n", b"data:\n\n"]
)
async def test_what_breaks_clients_is_left_out(noise: bytes) -> None:
    pieces = (event(chunk("a")), noise, event(chunk(finish="stop")), event("[DONE]"))
    async with raw_runtime(streams(*pieces)) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        got = await execute(adapter)
    assert got.body == event(chunk("a")) + event(chunk(finish="stop")) + event("[DONE]")


async def test_events_that_arrive_in_splinters_go_on_whole() -> None:
    whole = event(chunk("é")) + event(chunk(finish="stop")) + event("[DONE]")
    splinters = [bytes([byte]) for byte in whole]
    async with raw_runtime(streams(*splinters)) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        got = await execute(adapter)
    assert got.body == whole
    assert all(piece.endswith(b"\n\n") for piece in got.pieces)


@pytest.mark.parametrize(("sent", "added"), [("reasoning", "reasoning_content"), ("reasoning_content", "reasoning")])
async def test_thinking_is_given_under_both_of_its_names(sent: str, added: str) -> None:
    pieces = (event(chunk(**{sent: "hm"})), event(chunk("ok")), event(chunk(finish="stop")), event("[DONE]"))
    async with raw_runtime(streams(*pieces)) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        got = await execute(adapter)
    assert got.events[0]["choices"][0]["delta"] == {sent: "hm", added: "hm"}
    assert got.events[1]["choices"][0]["delta"] == {"content": "ok"}


async def test_a_runtime_that_leaves_done_out_is_completed_once_it_said_why_it_ended() -> None:
    pieces = (event(chunk("a")), event(chunk(finish="length")))
    async with raw_runtime(streams(*pieces)) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        got = await execute(adapter)
    assert got.events[-1] == "[DONE]"
    assert got.events[-2]["choices"][0]["finish_reason"] == "length"


@rule("E14")
async def test_a_slow_client_stops_the_reading_of_the_runtime() -> None:
    sent = 0

    async def script(request: Request) -> None:
        nonlocal sent
        await request.begin_stream()
        while not request.gone.is_set():
            await request.piece(event(chunk("x" * 60_000)))
            sent += 1

    recorder = Recorder()
    recorder.gate.clear()
    async with raw_runtime(script) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        task = asyncio.ensure_future(adapter.run(order(), recorder))
        last = -1
        async with asyncio.timeout(10):
            while last != sent or not sent:  # until the pipe is full
                last = sent
                await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert sent < 300, "what nobody reads fills socket buffers, not memory"


@rule("N5")
@pytest.mark.parametrize(
    ("operation", "path", "pieces"),
    [
        (
            "completions",
            "/v1/completions",
            [event({"choices": [{"text": "a", "finish_reason": "stop"}]}), event("[DONE]")],
        ),
        (
            "responses",
            "/v1/responses",
            [
                event({"type": "response.created"}, "response.created"),
                event(
                    {"type": "response.completed", "response": {"usage": {"input_tokens": 7, "output_tokens": 3}}},
                    "response.completed",
                ),
            ],
        ),
        (
            "messages",
            "/v1/messages",
            [
                event({"type": "message_start", "message": {"usage": {"input_tokens": 7}}}, "message_start"),
                event({"type": "ping"}, "ping"),
                event({"type": "message_delta", "usage": {"output_tokens": 3}}, "message_delta"),
                event({"type": "message_stop"}, "message_stop"),
            ],
        ),
    ],
)
async def test_every_streaming_surface_has_its_path_its_end_and_its_usage(
    operation: str, path: str, pieces: list[bytes]
) -> None:
    async with raw_runtime(streams(*pieces)) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        got = await execute(adapter, order(operation, {"input": "x"}))
        assert runtime.requests[0].path == path
    assert got.body == b"".join(pieces)
    if operation != "completions":
        assert got.usage == Usage(7, 3, from_runtime=True)


# -- a 200 proves nothing ---------------------------------------------------------------------------------------------

OVERFLOW = {"message": "maximum context length is 8 tokens", "type": "invalid_request_error", "code": 400}


@rule("E12", "E11")
@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b": only a comment\n\n"],
        [event("[DONE]")],
        [event("not json")],
        [event("[1]")],
        [b"<html>502</html>"],
        [event({"error": {"message": "engine died"}}), event("[DONE]")],
        [event({"error": {"message": "engine died"}}, "error")],
    ],
    ids=["nothing", "comment", "done", "no-json", "no-object", "html", "error", "error-event"],
)
@pytest.mark.parametrize("operation", ["chat_completions", "messages", "responses"])
async def test_a_200_without_a_good_first_event_is_a_failure_before_the_first_byte(
    operation: str, pieces: list[bytes]
) -> None:
    recorder = Recorder()
    error = await fail(streams(*pieces), recorder=recorder, operation=operation)
    assert (error.code, error.outcome, error.retryable) == ("upstream_error", "broken", True)
    assert error.maybe_executed
    assert recorder.heads == []


@rule("E12", "E13", "P14")
async def test_an_error_in_a_200_that_is_the_requests_own_fault_is_told_as_such() -> None:
    error = await fail(streams(event({"error": OVERFLOW})))
    assert (error.upstream_status, error.outcome, error.retryable) == (400, "client_error", False)
    assert json.loads(error.upstream_body)["error"]["message"] == OVERFLOW["message"]


@rule("E3", "E11")
@pytest.mark.parametrize(
    "late",
    [
        event({"error": {"message": "engine died"}}) + event("[DONE]"),
        event({"id": "x", "choices": [], "error": {"message": "engine died", "code": 502}}),
        b"",
        b'data: {"half',
    ],
    ids=["error", "error-in-a-chunk", "end", "half-an-event"],
)
async def test_a_stream_that_breaks_after_its_first_byte_never_looks_complete(late: bytes) -> None:
    recorder = Recorder()

    async def script(request: Request) -> None:
        await request.begin_stream()
        await request.piece(event(chunk("a")))
        await recorder.first.wait()
        if late:
            await request.piece(late)
        await request.end_stream()

    error = await fail(script, recorder=recorder)
    assert error.code == "upstream_error"
    assert error.outcome == "broken"
    assert recorder.body == event(chunk("a"))


@rule("E11")
@pytest.mark.parametrize("pieces", [[], [event(chunk("a"))], [event(chunk("a")), event(chunk(finish="stop"))]])
async def test_a_connection_that_is_cut_in_a_stream_is_a_failure(pieces: list[bytes]) -> None:
    async def script(request: Request) -> None:
        await request.begin_stream()
        for piece in pieces:
            await request.piece(piece)
        await asyncio.sleep(0.02)
        request.hang_up()

    error = await fail(script)
    assert (error.code, error.outcome, error.maybe_executed) == ("upstream_error", "broken", True)


@rule("E11")
async def test_an_event_without_an_end_is_a_failure_and_bounded() -> None:
    error = await fail(streams(*[b"data: " + b"x" * 2**20] * 40))
    assert error.code == "upstream_error"


@rule("E3")
async def test_a_response_that_failed_is_a_failure_with_the_runtimes_words() -> None:
    failed = {"type": "response.failed", "response": {"error": {"message": "no", "code": "server_error"}}}
    pieces = (event({"type": "response.created"}, "response.created"), event(failed, "response.failed"))
    error = await fail(streams(*pieces), operation="responses")
    assert json.loads(error.upstream_body)["error"]["message"] == "no"


# -- whole answers ----------------------------------------------------------------------------------------------------


async def test_a_plain_answer_goes_through_byte_for_byte() -> None:
    body = b'{"choices": [ {"message": {"content":"\\u00e9"}} ], "usage": {"prompt_tokens": 7, "completion_tokens": 3}}'

    async def script(request: Request) -> None:
        await request.answer(200, body, x_secret="no", content_type="application/json; charset=utf-8")

    async with raw_runtime(script) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        got = await execute(adapter, order(streaming=False))
        assert "stream" not in runtime.requests[0].json
    assert got.body == body
    assert got.heads == [(200, {"content-type": "application/json; charset=utf-8"})]
    assert got.usage == Usage(7, 3, from_runtime=True)


@pytest.mark.parametrize(
    ("operation", "path"), [("embeddings", "/v1/embeddings"), ("count_tokens", "/v1/messages/count_tokens")]
)
async def test_surfaces_without_streams_have_their_paths(operation: str, path: str) -> None:
    async def script(request: Request) -> None:
        await request.answer(200, {"data": [], "usage": {"prompt_tokens": 4, "total_tokens": 4}})

    for kind in ("openai_compat", "llama_cpp"):
        async with raw_runtime(script) as runtime, adapter_of(openai_settings(runtime.url, kind)) as adapter:
            got = await execute(adapter, order(operation, {"input": "x"}, streaming=False))
            assert runtime.requests[0].path == path
            assert "stream" not in runtime.requests[0].json
        assert got.json["data"] == []


async def test_a_large_plain_answer_goes_on_whole() -> None:
    vectors = [{"index": n, "embedding": [0.125] * 1000} for n in range(600)]

    async def script(request: Request) -> None:
        await request.answer(200, {"data": vectors, "usage": {"prompt_tokens": 9, "total_tokens": 9}})

    async with raw_runtime(script) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        got = await execute(adapter, order("embeddings", {"input": "x"}, streaming=False))
    assert got.json["data"] == vectors
    assert got.usage is not None
    assert got.usage.input_tokens == 9


@rule("E12")
@pytest.mark.parametrize("body", [b"", b"<html>", b'{"choices": [', b'{"error": {"message": "engine died"}}', b"[]"])
async def test_a_plain_200_that_is_no_answer_is_a_failure_before_the_first_byte(body: bytes) -> None:
    async def script(request: Request) -> None:
        await request.answer(200, body)

    recorder = Recorder()
    error = await fail(script, recorder=recorder, streaming=False)
    assert (error.code, error.outcome, error.retryable) == ("upstream_error", "broken", True)
    assert recorder.heads == []


@rule("E7")
async def test_a_plain_answer_that_is_cut_is_a_failure_before_the_first_byte() -> None:
    async def script(request: Request) -> None:
        await request.send(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n" + b'{"choices": [')
        await asyncio.sleep(0.02)
        request.hang_up()

    recorder = Recorder()
    error = await fail(script, recorder=recorder, streaming=False)
    assert (error.code, error.outcome, error.maybe_executed) == ("upstream_error", "broken", True)
    assert recorder.heads == []


# -- refusals ---------------------------------------------------------------------------------------------------------


@rule("P14", "E7")
@pytest.mark.parametrize(
    ("status", "outcome", "retryable"),
    [
        (400, "client_error", False),
        (401, "broken", True),
        (403, "broken", True),
        (404, "client_error", True),
        (405, "client_error", True),
        (413, "client_error", False),
        (422, "client_error", False),
        (429, "busy", True),
        (500, "broken", True),
        (501, "client_error", True),
        (502, "broken", True),
        (503, "busy", True),
        (504, "broken", True),
        (529, "busy", True),
    ],
)
async def test_what_a_status_means_for_another_try_and_for_health(status: int, outcome: str, retryable: bool) -> None:
    async def script(request: Request) -> None:
        await request.answer(status, {"error": {"message": "said"}}, retry_after="2")

    error = await fail(script)
    assert (error.outcome, error.retryable) == (outcome, retryable)
    assert (error.upstream_status, error.retry_after_ms) == (status, 2000)
    assert json.loads(error.upstream_body) == {"error": {"message": "said"}}


@rule("E6", "P14")
async def test_a_callers_own_key_that_is_refused_says_nothing_of_the_provider() -> None:
    async def script(request: Request) -> None:
        await request.answer(401, {"error": {"message": "bad key"}})

    error = await fail(script, secret_headers=(("Authorization", "Bearer x"),))
    assert (error.outcome, error.retryable) == ("client_error", False)


@rule("E13", "P14")
async def test_a_500_that_means_too_long_is_the_requests_own_fault() -> None:
    async def script(request: Request) -> None:
        text = "input (600 tokens) is too large to process. increase the physical batch size (current batch size: 512)"
        await request.answer(500, {"error": {"code": 500, "message": text, "type": "server_error"}})

    error = await fail(script, operation="embeddings", streaming=False)
    assert (error.outcome, error.retryable) == ("client_error", False)


async def test_an_error_body_is_cut_to_what_the_wire_carries() -> None:
    async def script(request: Request) -> None:
        await request.answer(500, b"x" * 300_000)

    error = await fail(script)
    assert len(error.upstream_body) == 64 * 1024


async def test_a_redirect_is_not_followed() -> None:
    async def script(request: Request) -> None:
        await request.answer(307, b"", location="http://192.0.2.1/v1/chat/completions")

    error = await fail(script)
    assert "307" in error.message


# -- connections ------------------------------------------------------------------------------------------------------


@rule("E7")
async def test_nothing_listens_means_nothing_was_executed() -> None:
    async with raw_runtime() as runtime:
        url = runtime.url
    async with adapter_of(openai_settings(url)) as adapter:
        error = await failure(adapter)
    assert (error.retryable, error.maybe_executed, error.outcome) == (True, False, "broken")
    assert "refused" in error.message.lower()


@rule("E7")
async def test_a_fresh_connection_that_dies_before_a_byte_may_have_run_and_is_not_repeated_here() -> None:
    async def script(request: Request) -> None:
        request.hang_up()

    async with raw_runtime(script) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        error = await failure(adapter)
        assert len(runtime.requests) == 1
    assert (error.retryable, error.maybe_executed, error.outcome) == (True, True, "broken")


@rule("N8")
async def test_a_kept_connection_that_dies_before_a_byte_is_tried_once_more_on_a_fresh_one() -> None:
    well = answers("hi")

    async def script(request: Request) -> None:
        if request.number > 1:
            request.hang_up()
        else:
            await well(request)

    async with raw_runtime(script) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        assert (await execute(adapter)).text == "hi"
        assert (await execute(adapter)).text == "hi"
        assert [request.connection for request in runtime.requests] == [1, 1, 2]


@rule("N8")
async def test_the_second_try_is_the_last() -> None:
    well = answers("hi")

    async def script(request: Request) -> None:
        if len(runtime.requests) > 1:
            request.hang_up()
        else:
            await well(request)

    async with raw_runtime(script) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        await execute(adapter)
        error = await failure(adapter)
        assert len(runtime.requests) == 3
    assert error.maybe_executed


@rule("N8")
async def test_a_kept_connection_that_dies_after_a_byte_is_not_tried_again() -> None:
    well = answers("hi")

    async def script(request: Request) -> None:
        if request.number > 1:
            await request.begin_stream()
            await asyncio.sleep(0.02)
            request.hang_up()
        else:
            await well(request)

    async with raw_runtime(script) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        await execute(adapter)
        await failure(adapter)
        assert len(runtime.requests) == 2


async def test_many_runs_go_at_once() -> None:
    both = asyncio.Barrier(150)

    async def script(request: Request) -> None:
        await both.wait()
        await answers("hi")(request)

    async with raw_runtime(script) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        done = await asyncio.gather(*(execute(adapter) for _ in range(150)))
    assert {got.text for got in done} == {"hi"}


async def test_a_large_body_is_sent_whole() -> None:
    text = "x" * (3 * 2**20)
    async with raw_runtime(answers("hi")) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        await execute(adapter, order(body={"messages": [{"role": "user", "content": text}]}))
        assert runtime.requests[0].json["messages"][0]["content"] == text


# -- headers ----------------------------------------------------------------------------------------------------------


@rule("E6", "C23")
async def test_a_run_carries_the_instances_headers_and_the_callers_own_token_above_them() -> None:
    settings = "canary-a"
    async with (
        raw_runtime(answers("hi")) as runtime,
        adapter_of(openai_settings(runtime.url, Authorization=f"Bearer {settings}", X_Org="o")) as adapter,
    ):
        await execute(adapter)
        await execute(
            adapter,
            order(
                headers=(("anthropic-beta", "x"),),
                secret_headers=(("authorization", "Bearer mine"),),
            ),
        )
        first, second = runtime.requests
        assert settings not in repr(adapter)
    assert first.headers["authorization"] == f"Bearer {settings}"
    assert first.headers["x-org"] == "o"
    assert second.headers["authorization"] == "Bearer mine"
    assert second.headers["anthropic-beta"] == "x"
    assert first.headers["content-type"] == "application/json"
    assert first.headers["accept-encoding"] == "identity"


# -- cancel -----------------------------------------------------------------------------------------------------------


async def started(runtime: RawRuntime, task: asyncio.Task[None]) -> Request:
    request = await runtime.request()
    assert not task.done()
    return request


@rule("E8", "N8")
@pytest.mark.parametrize("streaming", [True, False])
async def test_a_cancelled_run_leaves_the_runtime_at_once(streaming: bool) -> None:
    async with raw_runtime(hang) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        task = asyncio.ensure_future(adapter.run(order(streaming=streaming), Recorder()))
        request = await started(runtime, task)
        task.cancel()
        async with asyncio.timeout(1):
            with pytest.raises(asyncio.CancelledError):
                await task
            await request.gone.wait()


class Slots:
    """A llama.cpp `/slots`: which tasks run, by slot."""

    def __init__(self, *busy: int | None) -> None:
        self.busy: list[int | None] = list(busy)
        self.asked = 0

    async def __call__(self, request: Request) -> None:
        self.asked += 1
        listed = [
            {"id": number, "n_ctx": 512, "is_processing": task is not None, "id_task": task if task is not None else -1}
            for number, task in enumerate(self.busy)
        ]
        await request.answer(200, json.dumps(listed).encode())


@rule("N8", "P8")
async def test_a_cancelled_llama_run_ends_only_when_its_slot_is_idle() -> None:
    slots = Slots(1, None)
    async with raw_runtime(hang) as runtime, adapter_of(openai_settings(runtime.url, "llama_cpp")) as adapter:
        runtime.routes["/slots"] = slots
        task = asyncio.ensure_future(adapter.run(order(), Recorder()))
        request = await started(runtime, task)
        task.cancel()
        async with asyncio.timeout(5):
            await request.gone.wait()
            while slots.asked < 3:  # noqa: ASYNC110 -- the script has no event for it
                await asyncio.sleep(0.01)
            assert not task.done()
            slots.busy = [None, None]
            with pytest.raises(asyncio.CancelledError):
                await task


@rule("N8")
async def test_a_cancelled_llama_run_does_not_wait_for_the_others() -> None:
    slots = Slots(1, 2)
    async with (
        raw_runtime(_one_word_then_hang) as runtime,
        adapter_of(openai_settings(runtime.url, "llama_cpp")) as adapter,
    ):
        runtime.routes["/slots"] = slots
        recorders = Recorder(), Recorder()
        tasks = [asyncio.ensure_future(adapter.run(order(), recorder)) for recorder in recorders]
        async with asyncio.timeout(5):
            for recorder in recorders:
                await recorder.first.wait()
            tasks[0].cancel()
            while slots.asked < 2:  # noqa: ASYNC110 -- the script has no event for it
                await asyncio.sleep(0.01)
            assert not tasks[0].done()
            slots.busy = [None, 2]
            await asyncio.gather(tasks[0], return_exceptions=True)
            assert not tasks[1].done()
            slots.busy = [None, None]
            tasks[1].cancel()
            await asyncio.gather(tasks[1], return_exceptions=True)


@rule("N8")
async def test_a_run_that_has_not_answered_yet_does_not_vouch_for_anothers_slot() -> None:
    slots = Slots(1, None)
    async with raw_runtime(hang) as runtime, adapter_of(openai_settings(runtime.url, "llama_cpp")) as adapter:
        runtime.routes["/slots"] = slots
        left, waiting = (asyncio.ensure_future(adapter.run(order(), Recorder())) for _ in range(2))
        await runtime.request(2)
        left.cancel()
        async with asyncio.timeout(5):
            while slots.asked < 3:  # noqa: ASYNC110 -- the script has no event for it
                await asyncio.sleep(0.01)
            assert not left.done(), "the one slot at work may be ours: the other run may still wait"
            slots.busy = [9, None]
            await asyncio.gather(left, return_exceptions=True)
            slots.busy = [None, None]
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)


async def _one_word_then_hang(request: Request) -> None:
    await request.begin_stream()
    await request.piece(event(chunk("a")))
    await request.gone.wait()


@rule("N8")
async def test_a_second_cancel_gives_the_waiting_up() -> None:
    async with raw_runtime(hang) as runtime, adapter_of(openai_settings(runtime.url, "llama_cpp")) as adapter:
        runtime.routes["/slots"] = slots = Slots(1)
        task = asyncio.ensure_future(adapter.run(order(), Recorder()))
        await started(runtime, task)
        task.cancel()
        async with asyncio.timeout(5):
            while not slots.asked:  # noqa: ASYNC110 -- the script has no event for it
                await asyncio.sleep(0.01)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


@rule("N8")
@pytest.mark.parametrize("status", [404, 501])
async def test_a_llama_server_that_hides_its_slots_is_taken_at_its_word(status: int) -> None:
    async def no_slots(request: Request) -> None:
        await request.answer(status, {"error": {"message": "disabled"}})

    async with raw_runtime(hang) as runtime, adapter_of(openai_settings(runtime.url, "llama_cpp")) as adapter:
        runtime.routes["/slots"] = no_slots
        task = asyncio.ensure_future(adapter.run(order(), Recorder()))
        await started(runtime, task)
        task.cancel()
        async with asyncio.timeout(2):
            with pytest.raises(asyncio.CancelledError):
                await task


# -- llama.cpp is always streamed -------------------------------------------------------------------------------------


@rule("N8")
async def test_a_plain_llama_run_is_asked_for_as_a_stream_and_put_together() -> None:
    async with raw_runtime(answers("one", " two")) as runtime:
        async with adapter_of(openai_settings(runtime.url, "llama_cpp")) as adapter:
            got = await execute(adapter, order(streaming=False))
        sent = runtime.requests[0].json
    assert sent["stream"] is True
    assert sent["stream_options"] == {"include_usage": True}
    assert got.heads == [(200, {"content-type": "application/json"})]
    assert got.json == {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "served",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "one two"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10},
    }
    assert got.usage == Usage(7, 3, from_runtime=True)


@rule("N8", "E7")
async def test_a_plain_llama_run_that_breaks_in_the_middle_has_sent_nothing() -> None:
    recorder = Recorder()
    error = await fail(streams(event(chunk("a"))), "llama_cpp", recorder, streaming=False)
    assert error.retryable
    assert recorder.heads == []


async def test_cached_tokens_are_told_apart() -> None:
    pieces = (
        event(chunk("a")),
        event(chunk(finish="stop")),
        event(usage_chunk(prompt_tokens_details={"cached_tokens": 5})),
        event("[DONE]"),
    )
    async with raw_runtime(streams(*pieces)) as runtime, adapter_of(openai_settings(runtime.url)) as adapter:
        got = await execute(adapter)
    assert got.usage == Usage(7, 3, 5, from_runtime=True)
