"""Credit, with both ends in the test: never overrun, never a standstill (wire §1.2.4)."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from iop_wire.credit import ReceiveCredit, SendCredit
from iop_wire.limits import CHUNK_MAX, INITIAL_CREDIT
from support.rules import rule

WINDOWS = st.one_of(st.integers(0, 40), st.just(INITIAL_CREDIT), st.integers(1, INITIAL_CREDIT))


class Both:
    """A sender and a receiver with wires of any delay between them."""

    def __init__(self, window: int) -> None:
        self.send = SendCredit(window)
        self.receive = ReceiveCredit(window)
        self.bytes_under_way: deque[int] = deque()
        self.buffered: deque[int] = deque()
        self.grants_under_way: deque[int] = deque()
        self.grants = 0
        self.delivered = 0

    def try_to_send(self, size: int) -> bool:
        if not self.send.spend(size):
            return False
        self.bytes_under_way.append(size)
        return True

    def arrive(self) -> None:
        if self.bytes_under_way:
            size = self.bytes_under_way.popleft()
            assert self.receive.received(size), "a sender that keeps its account overran the receiver's"
            self.buffered.append(size)

    def take(self, joined: bool) -> None:
        if not self.buffered:
            return
        size = sum(self.buffered) if joined else self.buffered.popleft()
        if joined:
            self.buffered.clear()
        self.delivered += size
        if granted := self.receive.taken(size):
            self.grants_under_way.append(granted)
            self.grants += 1

    def grant_arrives(self) -> None:
        if self.grants_under_way:
            self.send.grant(self.grants_under_way.popleft())


@rule("P8")
@given(WINDOWS, st.data())
def test_whatever_the_order_nothing_overruns_and_everything_arrives(window: int, data: st.DataObject) -> None:
    both = Both(window)
    total = sent = 0
    for _ in range(data.draw(st.integers(0, 60))):
        size = data.draw(st.integers(1, both.send.piece_max))
        total += size
        # Any interleaving of the four things that can happen, until the piece has left.
        while not both.try_to_send(size):
            step = data.draw(st.integers(0, 3))
            (both.arrive, lambda: both.take(True), lambda: both.take(False), both.grant_arrives)[step]()
            if not (both.bytes_under_way or both.buffered or both.grants_under_way):
                assert both.try_to_send(size), "everything was taken and granted, and the sender still waits"
                break
        sent += size
    while both.bytes_under_way or both.buffered:
        both.arrive()
        both.take(joined=False)
    assert both.delivered == sent == total


@given(WINDOWS)
def test_a_sender_that_stands_still_is_always_let_on_once_its_bytes_are_taken(window: int) -> None:
    """The law behind the numbers: pieces of half a window, a grant at a quarter."""
    both = Both(window)
    for _ in range(12):
        while both.try_to_send(both.send.piece_max):
            pass
        while both.bytes_under_way or both.buffered:
            both.arrive()
            both.take(joined=False)
        assert both.grants_under_way
        while both.grants_under_way:
            both.grant_arrives()
        assert both.send.available >= both.send.piece_max


def test_more_than_the_window_is_an_overrun() -> None:
    receive = ReceiveCredit(100)
    assert receive.received(100)
    assert not receive.received(1)
    assert receive.taken(100) == 100
    assert receive.received(100)


def test_a_refused_spend_takes_nothing() -> None:
    send = SendCredit(100)
    assert not send.spend(101)
    assert send.available == 100
    assert send.spend(100)
    assert send.available == 0


def test_a_piece_is_never_larger_than_an_event_may_be() -> None:
    assert SendCredit(10**9).piece_max == CHUNK_MAX
    assert SendCredit(INITIAL_CREDIT).piece_max <= INITIAL_CREDIT // 2
    assert SendCredit(0).piece_max == 1


def test_grants_are_few_not_one_a_chunk() -> None:
    both = Both(INITIAL_CREDIT)
    for _ in range(4096):
        assert both.try_to_send(256)
        both.arrive()
        both.take(joined=False)
        both.grant_arrives()
    assert both.grants == 4096 * 256 * 4 // INITIAL_CREDIT
