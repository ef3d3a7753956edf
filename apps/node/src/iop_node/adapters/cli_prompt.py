"""From a request to what a command is given: the prompt's text, the arguments, and words without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from iop_node.adapters.chat import ChatMessage
from iop_node.adapters.cli_process import ARGUMENT_MAX, StartError
from iop_node.settings import CliSettings

__all__ = ["arguments", "last_words", "redact", "tokens", "whole_prompt"]

_PLACE = re.compile(r"\{(model|prompt|session_id)\}")
_RESUME = "{resume}"
_SPEAKERS = {"assistant": "Assistant", "tool": "Tool result", "user": "User"}
_SECRET_MIN = 6
_KEY_LIKE = re.compile(r"\b(?:sk|pk|ghp|gho|xox[abp])[-_][A-Za-z0-9_-]{8,}|(?<=Bearer )[^\s\"',]{8,}")
_WORDS_MAX = 500


def whole_prompt(messages: tuple[ChatMessage, ...]) -> str:
    """Return a conversation as one prompt: a single question as it is, more turns with their speakers."""
    system = [m.text for m in messages if m.role in ("system", "developer") and m.text]
    turns = [m for m in messages if m.role not in ("system", "developer") and m.text]
    if len(turns) == 1:
        return "\n\n".join([*system, turns[0].text])
    spoken = [f"{_SPEAKERS.get(m.role, 'User')}: {m.text}" for m in turns]
    opening = ["This is a conversation so far. Give the assistant's next answer, and nothing else."] if turns else []
    return "\n\n".join([*system, *opening, *spoken])


def arguments(cli: CliSettings, *, model: str, prompt: str, session_id: str = "") -> tuple[str, ...]:
    """Return the arguments of one run: `args`, then `resume_args` where a session goes on, then the prompt.

    In them `{model}` stands for the served model and `{session_id}` for the session; an argument `{resume}` is the
    place for `resume_args`, and `{prompt}` the one for the prompt where it is given by argument. What is put in is not
    looked at again. Raises StartError for a prompt that no argument can hold.
    """
    resume = cli.resume_args if session_id else ()
    template: list[str] = []
    for argument in cli.args:
        template += resume if argument == _RESUME else [argument]
    if _RESUME not in cli.args:
        template += resume
    values = {"model": model, "session_id": session_id}
    if cli.prompt == "argument":
        _check_argument(prompt)
        values["prompt"] = prompt
        if not any("{prompt}" in argument for argument in template):
            template.append("{prompt}")
    return tuple(_filled(argument, values) for argument in template)


def _filled(argument: str, values: Mapping[str, str]) -> str:
    filled = _PLACE.sub(lambda found: values.get(found[1], found[0]), argument)
    # Nobody who asks a question gets to set an option of the command.
    return f" {filled}" if argument.startswith(("{prompt}", "{session_id}")) and filled.startswith("-") else filled


def _check_argument(prompt: str) -> None:
    if "\0" in prompt:
        raise StartError("the prompt holds a NUL character, which no argument can", request_fault=True)
    size = len(prompt.encode("utf-8", "replace"))
    if size > ARGUMENT_MAX:
        text = f"the prompt has {size} bytes, an argument at most {ARGUMENT_MAX}; `prompt: stdin` has no limit"
        raise StartError(text, request_fault=True)


def redact(text: str, secrets: Iterable[str]) -> str:
    """Return the text without these values, and without what looks like a key (C1)."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SECRET_MIN:  # shorter ones are switches, and would tear holes into every word
            text = text.replace(secret, "<redacted>")
    return _KEY_LIKE.sub("<redacted>", text)


def last_words(stderr: str) -> str:
    """Return the end of what a command complained, on one line."""
    lines = [line for raw in stderr.splitlines() if (line := "".join(filter(str.isprintable, raw)).strip())]
    words = " | ".join(lines[-5:])
    return words if len(words) <= _WORDS_MAX else f"… {words[-_WORDS_MAX:]}"


def tokens(text: str) -> int:
    """Return about how many tokens a text has, for a command that does not say (E9)."""
    plain = sum(character < "\x80" for character in text)
    return plain // 4 + (len(text) - plain) * 7 // 10 or (1 if text else 0)
