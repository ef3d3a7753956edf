"""From a Node's handle to the client's reply: what is held back, when the first byte leaves (E7, E11)."""

from __future__ import annotations

from collections.abc import Callable

from iop_edge.failures import Failure, failure_of
from iop_edge.nodes.run import Chunk, End, EndKind, Head, RunError, RunHandle
from iop_edge.order import Order, Reply
from iop_edge.routing import Target

__all__ = ["Relay"]

# A plain answer up to this size is held until it is complete, so that a cut one can still fail over (E7).
_WHOLE_BYTES = 1024 * 1024
# One that must be changed as a whole has to fit; a larger one leaves as it is.
_REFIT_BYTES = 64 * 1024 * 1024
_ERROR_BYTES = 64 * 1024


class Relay:
    """The answer of one request over all its attempts: only one of them ever reaches the client.

    `clock` counts monotonic seconds.
    """

    def __init__(self, order: Order, reply: Reply, clock: Callable[[], float]) -> None:
        self._order = order
        self._reply = reply
        self._clock = clock
        self.forwarded = False
        """Whether a byte of an answer has left: from then on no other attempt may follow."""
        self.first_event: float | None = None
        """When the first byte of any answer came."""

    async def answer(
        self, handle: RunHandle, target: Target, *, window: int | None, estimate: int, alive: Callable[[], None]
    ) -> Failure | None:
        """Give the attempt's answer to the client; None when it is complete, else how it failed.

        `alive` is called at the first event of a stream: a run that produces tokens is proof of life (P14).
        """
        streaming = self._order.streaming
        limit = _WHOLE_BYTES if self._order.refit is None else _REFIT_BYTES
        head: Head | None = None
        held: list[bytes] = []
        size = 0
        while True:
            item = await handle.next()
            if isinstance(item, Chunk):
                if self.forwarded:
                    await self._reply.data(item.data)
                    continue
                if self.first_event is None:
                    self.first_event = self._clock()
                size += len(item.data)
                failed = head is not None and head.status >= 400
                if not failed or size <= _ERROR_BYTES:
                    held.append(item.data)
                if head is not None and not failed and (streaming or size > limit):
                    if streaming:
                        alive()
                    self.forwarded = True
                    await self._reply.head(head.status, head.headers)
                    await self._reply.data(b"".join(held))
                    held.clear()
            elif isinstance(item, Head):
                head = item
            else:
                return await self._ended(item, head, b"".join(held), target, window, estimate)

    async def _ended(
        self, end: End, head: Head | None, body: bytes, target: Target, window: int | None, estimate: int
    ) -> Failure | None:
        if end.kind is EndKind.COMPLETED:
            if self.forwarded:
                await self._reply.finish()
                return None
            if head is not None and head.status < 400 and not self._order.streaming:
                refit = self._order.refit
                await self._reply.whole(head.status, head.headers, body if refit is None else refit(body))
                return None
            end = _no_answer(end, head, body)
        return failure_of(end, target, operation=self._order.operation, window=window, estimate=estimate)


def _no_answer(end: End, head: Head | None, body: bytes) -> End:
    """A completed run that is none: a 200 proves nothing (backends §0.4), and an error may come as an answer."""
    if head is not None and head.status >= 400:
        error = RunError(
            "upstream_error",
            f"the runtime answered {head.status}",
            upstream_status=head.status,
            upstream_body=body,
            retryable=head.status == 429 or head.status >= 500,
            maybe_executed=True,
        )
    else:
        error = RunError(
            "upstream_error",
            "the runtime ended its answer before it said anything",
            retryable=True,
            maybe_executed=True,
        )
    return End(EndKind.FAILED, usage=end.usage, error=error, started=True)
