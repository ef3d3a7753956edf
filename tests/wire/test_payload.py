"""Request bodies in parts: whole again on the other side, and any misfit is found (wire §1.1 RunPayload)."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from iop_wire.limits import INLINE_PAYLOAD_MAX, MIB, PAYLOAD_MAX, PAYLOAD_PART
from iop_wire.payload import Part, PayloadAssembly, PayloadPartError, split_payload


@given(st.binary(min_size=1, max_size=2000), st.integers(1, 300))
def test_any_split_comes_together_again(body: bytes, part_max: int) -> None:
    parts = list(split_payload(body, part_max))
    assert [part.last for part in parts] == [False] * (len(parts) - 1) + [True]
    assert all(len(part.data) <= part_max for part in parts)
    assembly = PayloadAssembly(len(body))
    results = [assembly.add(part.offset, part.data, part.last) for part in parts]
    assert results == [None] * (len(parts) - 1) + [body]


@given(st.binary(min_size=2, max_size=200), st.data())
def test_a_part_too_few_too_many_or_out_of_order_is_found(body: bytes, data: st.DataObject) -> None:
    parts = list(split_payload(body, data.draw(st.integers(1, len(body) - 1))))
    wrong = data.draw(st.permutations(parts)) + data.draw(st.lists(st.sampled_from(parts), max_size=1))
    wrong = wrong[: data.draw(st.integers(1, len(wrong)))]
    assume(wrong != parts)
    assembly = PayloadAssembly(len(body))
    results: list[bytes | None] = []
    try:
        results.extend(assembly.add(part.offset, part.data, part.last) for part in wrong)
    except PayloadPartError:
        # A body that was complete and then got one part more had been handed out already, and rightly.
        assert not [one for one in results if one not in (None, body)]
    else:
        assert wrong == parts[: len(wrong)]
        assert results == [None] * len(wrong)


@pytest.mark.parametrize("size", [PAYLOAD_PART - 1, PAYLOAD_PART, PAYLOAD_PART + 1, 3 * PAYLOAD_PART])
def test_sizes_at_the_bound_of_a_part(size: int) -> None:
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    parts = list(split_payload(body))
    assert len(parts) == -(-size // PAYLOAD_PART)
    assembly = PayloadAssembly(size)
    assert [assembly.add(part.offset, part.data, part.last) for part in parts][-1] == body


def test_parts_are_cut_only_when_asked_for() -> None:
    parts = split_payload(bytes(8 * MIB))
    assert next(parts) == Part(0, bytes(PAYLOAD_PART), last=False)


def test_64_mib_is_the_most() -> None:
    PayloadAssembly(PAYLOAD_MAX)
    with pytest.raises(PayloadPartError, match="is above"):
        PayloadAssembly(PAYLOAD_MAX + 1)
    assert INLINE_PAYLOAD_MAX <= PAYLOAD_PART <= PAYLOAD_MAX
