"""Which conversation goes on in which session of a command, for `mode: session`. No I/O; the folders are the caller's.

A client of an API repeats the whole conversation in each request, so a session is found by what was said before: a
digest over every turn up to the last answer. It is taken out while it is used, and put back under the digest of the
longer conversation: so two requests never share a session, and nobody finds one without knowing all that it said.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable

from attrs import frozen

from iop_node.adapters.chat import ChatMessage

__all__ = ["KeptSession", "SessionBook", "conversation_key", "new_turns"]

_KEPT = 256


@frozen
class KeptSession:
    """A session that can be resumed."""

    session_id: str
    """The command's own name for it."""
    folder: str
    """Where it runs: commands keep their sessions by folder."""
    key: str
    """The conversation that it holds."""
    handle: str
    """What a client may name it by: the id of the answer that it gave last."""


class SessionBook:
    """Sessions by conversation and by handle; at most 256, the one unused for longest goes first."""

    def __init__(self, limit: int = _KEPT) -> None:
        self._limit = limit
        self._by_key: OrderedDict[str, KeptSession] = OrderedDict()
        self._by_handle: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def take(self, key: str, handle: str | None = None) -> KeptSession | None:
        """Take out the session with this handle, else the one that holds this conversation."""
        found = self._by_key.pop(self._by_handle.get(handle or "", key), None)
        if found is not None:
            del self._by_handle[found.handle]
        return found

    def keep(self, session: KeptSession) -> list[KeptSession]:
        """Put a session in; return those that had to go for it. Of two with the same conversation the newer stays."""
        gone = [old] if (old := self.take(session.key)) is not None else []
        self._by_key[session.key] = session
        self._by_handle[session.handle] = session.key
        while len(self._by_key) > self._limit:
            _, old = self._by_key.popitem(last=False)
            del self._by_handle[old.handle]
            gone.append(old)
        return gone

    def clear(self) -> list[KeptSession]:
        """Take all of them out."""
        all_of_them = list(self._by_key.values())
        self._by_key.clear()
        self._by_handle.clear()
        return all_of_them


def conversation_key(start: str, messages: Iterable[ChatMessage]) -> str:
    """Return the digest of a conversation that goes on from `start`: the served model, or an earlier key.

    Blanks around a turn do not count, since clients trim.
    """
    key = start
    for message in messages:
        role = "system" if message.role == "developer" else message.role
        turn = f"{key}\0{role}\0{message.text.strip()}"
        key = hashlib.sha256(turn.encode("utf-8", "surrogatepass")).hexdigest()
    return key


def new_turns(messages: tuple[ChatMessage, ...]) -> tuple[tuple[ChatMessage, ...], tuple[ChatMessage, ...]]:
    """Split a conversation after the last answer: what a session could know already, and what is new."""
    last = max((at for at, message in enumerate(messages) if message.role == "assistant"), default=-1)
    return messages[: last + 1], messages[last + 1 :]
