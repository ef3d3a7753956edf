"""The `cli` adapter: a command per run, its output read as a chat answer, its session taken up again (N5, N9)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
from typing import ClassVar

import msgspec
from attrs import define, evolve, field, frozen

from iop_node.adapters.base import (
    JSON_HEAD,
    STREAM_HEAD,
    AdapterContext,
    BuildError,
    ProbeResult,
    ProbeTarget,
    RunFailedError,
    RunOutput,
)
from iop_node.adapters.chat import ChatMessage, ChatRequest, Renderer, read_request, renderer
from iop_node.adapters.cli_formats import FORMATS, Event, OutputParser, Reasoning, Session, Text, Verdict
from iop_node.adapters.cli_process import Command, OutputLimitError, Process, StartError, environment, find_program
from iop_node.adapters.cli_prompt import arguments, last_words, redact, tokens, whole_prompt
from iop_node.adapters.cli_sessions import KeptSession, SessionBook, conversation_key, new_turns
from iop_node.link import Health, RunError, RunOrder, Usage
from iop_node.settings import AdapterSettings, CliSettings

__all__ = ["CliAdapter"]

_EXIT_S = 10.0
"""How long a command may live on after its final event, or after it closed its output."""
_OVERFLOW = re.compile(r"prompt is too long|context (?:length|window|limit)", re.IGNORECASE)


@frozen
class _Plan:
    """What one run is given: a session that goes on, or a fresh start with everything that was said."""

    prompt: str
    known: str
    """The conversation that the session holds before this run."""
    new: tuple[ChatMessage, ...]
    session: KeptSession | None = None
    alone: bool = False
    """The request holds only what is new: without its session it cannot be answered."""


class CliAdapter:
    """Implements `Adapter` over subprocesses."""

    kinds: ClassVar[frozenset[str]] = frozenset({"cli"})

    def __init__(self, settings: AdapterSettings, context: AdapterContext) -> None:
        """Raises BuildError for settings that no run could use."""
        if not isinstance(settings.detail, CliSettings) or not settings.detail.command:
            raise BuildError("cli.command", "missing", "the adapter needs a command")
        self._cli = settings.detail
        self._keeps = self._cli.mode == "session"
        self._check()
        own = [(pair.name, pair.value) for pair in self._cli.env]
        self._env = environment(own)
        self._secrets = [value for _, value in own]
        self._book = SessionBook()
        self._sessions_folder = context.folder / "sessions"
        self._swept = False

    def _check(self) -> None:
        if self._cli.output_format not in FORMATS:
            text = f'"{self._cli.output_format}" is unknown; there are {", ".join(FORMATS)}'
            raise BuildError("cli.output_format", "unknown", text)
        if self._keeps and self._cli.output_format == "text":
            text = "mode session needs an output_format that names the session; text does not"
            raise BuildError("cli.output_format", "no_session", text)
        if self._keeps and not any("{session_id}" in argument for argument in self._cli.resume_args):
            text = "mode session needs resume_args with {session_id}"
            raise BuildError("cli.resume_args", "no_session", text)

    # -- runs ---------------------------------------------------------------------------------------------------------

    async def run(self, order: RunOrder, out: RunOutput) -> None:
        """Start the command, read its answer, judge its end."""
        handle = f"resp_{order.run_id}"
        writer = renderer(order.operation, "cli", order.target, order.run_id, (handle,) if self._keeps else ())
        request = read_request(order)
        if request.attachments:
            raise RunFailedError(
                _request_fault("invalid_request", "this model takes text only: leave images and files out")
            )
        plan = self._plan(order, request)
        counted = Usage(order.input_tokens_estimate or tokens(plan.prompt))
        reply = _Reply(order, out, writer, counted)
        folder = plan.session.folder if plan.session is not None else await self._folder()
        kept = False
        try:
            verdict = await self._execute(order, plan, folder, reply)
            if plan.session is not None and not verdict.ok and not reply.began and not plan.alone:
                # It does not know the session any more, and did nothing: tell it everything anew.
                plan = self._fresh(order, request)
                reply = _Reply(order, out, writer, counted)
                verdict = await self._execute(order, plan, folder, reply)
            if not verdict.ok:
                out.usage = verdict.usage or out.usage
                raise RunFailedError(self._failure(order, verdict))
            await reply.end(verdict)
            kept = await self._keep(plan, reply, folder, handle)
        finally:
            if not kept and not self._put_back(plan, reply):
                await self._remove(folder)

    async def _execute(self, order: RunOrder, plan: _Plan, folder: str, reply: _Reply) -> Verdict:
        session_id = plan.session.session_id if plan.session is not None else ""
        parser = FORMATS[self._cli.output_format]()
        try:
            process = Process(self._command(order, plan.prompt, session_id, folder))
        except StartError as error:
            raise RunFailedError(_not_started(redact(str(error), self._secrets), error.request_fault)) from None
        reply.out.contacted()
        try:
            ended = await self._listen(process, parser, reply)
            exit_code = await self._exit_code(process, parser, _EXIT_S if ended else 0.0)
        except OutputLimitError:
            text = f"{self._name} wrote more than max_output_bytes ({self._cli.max_output_bytes}) and was stopped"
            raise RunFailedError(RunError("output_limit", text, maybe_executed=True, outcome="client_error")) from None
        finally:
            await process.stop()
        events, verdict = parser.finish(exit_code)
        await reply.take(events)
        reply.began = reply.began or parser.began
        return self._explained(verdict, process.stderr_tail)

    async def _listen(self, process: Process, parser: OutputParser, reply: _Reply) -> bool:
        """Read to the end of the output. False: the command said its last word, yet neither ends nor closes it."""
        loop = asyncio.get_running_loop()
        until: float | None = None
        while True:
            until = (until or loop.time() + _EXIT_S) if parser.final else None
            try:
                async with asyncio.timeout_at(until):
                    data = await process.read()
            except TimeoutError:
                return False
            if not data:
                return True
            reply.out.alive()
            await reply.take(parser.feed(data))

    async def _exit_code(self, process: Process, parser: OutputParser, wait: float) -> int:
        try:
            async with asyncio.timeout(wait):
                return await process.exit_code()
        except TimeoutError:
            await process.stop()
            # It had said how the run ended and is only slow to leave: what our signal made of its code says nothing.
            return 0 if parser.final else await process.exit_code()

    def _explained(self, verdict: Verdict, stderr: str) -> Verdict:
        """The verdict with what stderr says, where the command's own final event did not say why."""
        if verdict.ok or verdict.told or not (words := last_words(redact(stderr, self._secrets))):
            return verdict
        return Verdict(False, f"{verdict.message}; it complained: {words}", verdict.status, verdict.usage)

    def _failure(self, order: RunOrder, verdict: Verdict) -> RunError:
        message = redact(f"{self._name}: {verdict.message}", self._secrets)
        status = verdict.status
        if status is None and _OVERFLOW.search(verdict.message):
            status = 400
        if status is None:
            return RunError("upstream_error", message, maybe_executed=True)
        if status == 404:
            message = f'{message} (does the API behind it know the model "{order.target}"?)'
        if status in (429, 503, 529):
            outcome = "busy"
        else:
            outcome = "client_error" if status < 500 and status not in (401, 403) else "broken"
        body = msgspec.json.encode({"error": {"message": message}})
        return RunError(
            "upstream_error", message, upstream_status=status, upstream_body=body, maybe_executed=True, outcome=outcome
        )

    # -- what a run is given ------------------------------------------------------------------------------------------

    def _plan(self, order: RunOrder, request: ChatRequest) -> _Plan:
        alone = order.operation == "responses" and request.session_id is not None
        if not self._keeps:
            if alone:
                text = "this model keeps no sessions; send the whole conversation, or set `mode: session`"
                raise RunFailedError(_request_fault("unsupported_parameter", text))
            return self._fresh(order, request)
        before, new = new_turns(request.messages)
        key = conversation_key(order.target, before)
        session = self._book.take(key, request.session_id) if before or request.session_id else None
        if session is None and alone:
            text = "there is no such previous response here, or it has been continued already"
            raise RunFailedError(_request_fault("previous_response_not_found", text))
        if session is None:
            return self._fresh(order, request)
        prompt = "\n\n".join(m.text for m in new if m.text and m.role not in ("system", "developer"))
        return _Plan(prompt or request.last_text, session.key, new, session, alone)

    def _fresh(self, order: RunOrder, request: ChatRequest) -> _Plan:
        return _Plan(whole_prompt(request.messages), order.target, request.messages)

    def _command(self, order: RunOrder, prompt: str, session_id: str, folder: str) -> Command:
        given = arguments(self._cli, model=order.target, prompt=prompt, session_id=session_id)
        return Command(
            argv=(find_program(self._cli.command, self._env), *given),
            env={"IOP_MODEL": order.target, "IOP_RUN_ID": order.run_id} | self._env,
            cwd=folder,
            stdin=prompt.encode("utf-8", "replace") if self._cli.prompt == "stdin" else b"",
            max_output_bytes=self._cli.max_output_bytes,
        )

    @property
    def _name(self) -> str:
        return os.path.basename(self._cli.command)

    # -- folders and sessions -----------------------------------------------------------------------------------------

    async def _folder(self) -> str:
        if self._cli.working_dir:
            return self._cli.working_dir
        try:
            if not self._keeps:
                return tempfile.mkdtemp(prefix="iop-run-")
            await self._sweep()
            return tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=self._sessions_folder)
        except OSError as error:
            raise RunFailedError(_not_started(f"no working folder can be made: {error.strerror}", False)) from None

    async def _sweep(self) -> None:
        """Once: make the place for sessions, and remove what an earlier process left there."""
        if not self._swept:
            self._swept = True
            os.makedirs(self._sessions_folder, mode=0o700, exist_ok=True)
            ours = f"{os.getpid()}-"
            left = [entry.path for entry in os.scandir(self._sessions_folder) if not entry.name.startswith(ours)]
            await self._remove(*left)

    async def _remove(self, *folders: str) -> None:
        made = [folder for folder in folders if folder != self._cli.working_dir]
        if made:
            # In a thread, and to its end whatever happens to us: a run may leave a whole source tree behind.
            await asyncio.shield(asyncio.to_thread(_remove_folders, made))

    async def _keep(self, plan: _Plan, reply: _Reply, folder: str, handle: str) -> bool:
        session_id = reply.session_id or (plan.session.session_id if plan.session is not None else "")
        if not self._keeps or not session_id:
            return False
        key = conversation_key(plan.known, (*plan.new, ChatMessage("assistant", reply.text)))
        gone = self._book.keep(KeptSession(session_id, folder, key, handle))
        await self._remove(*(session.folder for session in gone))
        return True

    def _put_back(self, plan: _Plan, reply: _Reply) -> bool:
        """After a run that did not succeed: keep its session if that is where it was, or all that the client has."""
        if plan.session is None or (reply.began and not plan.alone):
            return False
        self._book.keep(plan.session)
        return True

    # -- probe, close -------------------------------------------------------------------------------------------------

    async def probe(self, target: ProbeTarget) -> ProbeResult:
        """Look whether the command and its folder are there.

        Nothing is started: no option, `--version` neither, is certain to be free of side effects in every command.
        """
        context = target.context_size or self._cli.context_size or 0
        try:
            find_program(self._cli.command, self._env)
        except StartError as error:
            return ProbeResult(Health.UNHEALTHY, redact(str(error), self._secrets), context)
        folder = self._cli.working_dir
        if folder and not os.access(os.path.join(folder, ""), os.W_OK | os.X_OK):
            text = f'there is no working folder "{folder}" that can be written to'
            return ProbeResult(Health.UNHEALTHY, text, context)
        return ProbeResult(Health.HEALTHY, context_tokens=context)

    async def close(self) -> None:
        """Forget the sessions and remove their folders."""
        await self._remove(*(session.folder for session in self._book.clear()))


@define
class _Reply:
    """One answer on its way to the client, in the form of its surface."""

    order: RunOrder
    out: RunOutput
    writer: Renderer
    counted: Usage
    """Our own count, for a command that does not tell (E9)."""
    began: bool = False
    """The command has said something that its format knows."""
    session_id: str = ""
    _headed: bool = False
    _parts: list[str] = field(factory=list)
    _thoughts: list[str] = field(factory=list)

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(self._parts)

    async def take(self, events: list[Event]) -> None:
        """Say what came, all of it in one piece."""
        data = b""
        for event in events:
            self.began = True
            match event:
                case Session(session_id):
                    self.session_id = session_id
                case Text(text):
                    self._parts.append(text)
                    self._count(text)
                    data += self._streamed(self.writer.text(text))
                case Reasoning(text):
                    self._thoughts.append(text)
                    self._count(text)
                    data += self._streamed(self.writer.reasoning(text))
        if data:
            await self.out.data(data)

    def _count(self, text: str) -> None:
        self.counted = evolve(self.counted, output_tokens=self.counted.output_tokens + tokens(text))
        self.out.usage = self.counted

    def _streamed(self, data: bytes) -> bytes:
        if not self.order.streaming or not data:
            return b""
        if self._headed:
            return data
        self._headed = True
        self.out.head(200, STREAM_HEAD)
        return self.writer.begin() + data

    async def end(self, verdict: Verdict) -> None:
        """Complete the answer."""
        self.out.usage = usage = verdict.usage or self.counted
        if not self.order.streaming:
            self.out.head(200, JSON_HEAD)
            thoughts = "".join(self._thoughts)
            await self.out.data(self.writer.whole(self.text, usage, thoughts, finish=verdict.finish_reason))
            return
        tail = self.writer.end(usage, include_usage=self.order.include_usage, finish=verdict.finish_reason)
        await self.out.data(self._streamed(tail))


def _request_fault(code: str, message: str) -> RunError:
    body = msgspec.json.encode({"error": {"message": message, "code": code, "type": "invalid_request_error"}})
    return RunError(code, message, upstream_status=400, upstream_body=body, outcome="client_error")


def _not_started(message: str, request_fault: bool) -> RunError:
    if request_fault:
        return _request_fault("invalid_request", message)
    return RunError("upstream_error", message, retryable=True)


def _remove_folders(folders: list[str]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        if os.path.isdir(folder):  # a cache that was made read-only, most likely
            for parent, _, _ in os.walk(folder):
                with contextlib.suppress(OSError):
                    os.chmod(parent, 0o700)
            shutil.rmtree(folder, ignore_errors=True)
