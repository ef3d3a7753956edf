"""Frames as bytes: numbered without a gap, bounded, and no surprise whatever the bytes are (wire §1.1, G15)."""

from __future__ import annotations

import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_wire import runtime_pb2 as pb
from iop_wire.framing import FrameReader, FrameTooLargeError, FrameWriter, WireError, frame_limit
from iop_wire.limits import CONFIG_FRAME_MAX, FRAME_MAX, GRPC_MESSAGE_MAX
from support.frames import edge_frames, node_frames
from support.rules import rule

NODE = list(node_frames().values())
EDGE = list(edge_frames().values())


def _node_bytes(number: int) -> bytes:
    return pb.NodeFrame(frame_seq=number, heartbeat=pb.Heartbeat(n=number)).SerializeToString()


def _filled(size: int, **body: object) -> pb.NodeFrame:
    """A goodbye or a draining of exactly `size` bytes once it is sealed as frame 1."""
    name = "draining" if "draining" in body else "goodbye"
    frame = pb.NodeFrame(frame_seq=1)
    getattr(frame, name).reason = "x" * size
    getattr(frame, name).reason = "x" * (size - (frame.ByteSize() - size))
    assert frame.ByteSize() == size
    return frame


@given(st.lists(st.sampled_from(NODE), max_size=20))
def test_what_is_sealed_is_read_in_order(frames: list[pb.NodeFrame]) -> None:
    writer: FrameWriter[pb.NodeFrame] = FrameWriter()
    reader: FrameReader[pb.NodeFrame] = FrameReader(pb.NodeFrame)
    for number, frame in enumerate(frames, start=1):
        sent = pb.NodeFrame()
        sent.CopyFrom(frame)
        received = reader.read(writer.seal(sent))
        assert received.frame_seq == number == writer.count
        received.frame_seq = frame.frame_seq
        assert received == frame


@given(st.lists(st.integers(1, 6), min_size=1, max_size=6))
def test_a_gap_a_repeat_or_a_swap_is_noticed_at_once(numbers: list[int]) -> None:
    reader: FrameReader[pb.NodeFrame] = FrameReader(pb.NodeFrame)
    for expected, number in enumerate(numbers, start=1):
        if number != expected:
            with pytest.raises(WireError, match=f"frame {number} after frame {expected - 1}"):
                reader.read(_node_bytes(number))
            return
        reader.read(_node_bytes(number))


def test_a_frame_without_a_number_is_refused() -> None:
    reader: FrameReader[pb.NodeFrame] = FrameReader(pb.NodeFrame)
    with pytest.raises(WireError):
        reader.read(pb.NodeFrame(heartbeat=pb.Heartbeat(n=1)).SerializeToString())


@given(st.binary(max_size=300))
def test_garbage_is_a_wire_error_or_a_frame_and_nothing_else(data: bytes) -> None:
    for reader in (FrameReader(pb.NodeFrame), FrameReader(pb.EdgeFrame)):
        refused, number = "", 1
        try:
            number = reader.read(data).frame_seq
        except WireError as error:
            refused = str(error)
        assert number == 1
        assert len(refused) < 200


@rule("C23")
@given(st.sampled_from(EDGE), st.data())
def test_cut_and_flipped_frames_never_raise_anything_else_nor_quote_what_they_hold(
    frame: pb.EdgeFrame, data: st.DataObject
) -> None:
    sealed = bytearray(FrameWriter[pb.EdgeFrame]().seal(pb.EdgeFrame.FromString(frame.SerializeToString())))
    for _ in range(data.draw(st.integers(0, 3), label="flips")):
        sealed[data.draw(st.integers(0, len(sealed) - 1), label="at")] ^= 1 << data.draw(st.integers(0, 7), label="bit")
    cut = data.draw(st.integers(0, len(sealed)), label="cut")
    told = ""
    try:
        FrameReader(pb.EdgeFrame).read(bytes(sealed[:cut]))
    except WireError as error:
        told = "".join(traceback.format_exception(error))
    assert "Bearer" not in told


@pytest.mark.parametrize("length", [2**31 - 1, 2**32, 2**63 - 1])
def test_a_length_that_promises_more_than_there_is_costs_nothing(length: int) -> None:
    claim, value = bytearray(b"\x1a"), length  # field 3, config_result, length-delimited
    while value > 0x7F:
        claim.append(value & 0x7F | 0x80)
        value >>= 7
    claim.append(value)
    with pytest.raises(WireError):
        FrameReader(pb.NodeFrame).read(b"\x08\x01" + bytes(claim))


def test_a_run_frame_may_have_256_kib_and_not_a_byte_more() -> None:
    writer: FrameWriter[pb.NodeFrame] = FrameWriter()
    with pytest.raises(FrameTooLargeError) as raised:
        writer.seal(_filled(FRAME_MAX + 1, goodbye=True))
    assert (raised.value.body, raised.value.size, raised.value.limit) == ("goodbye", FRAME_MAX + 1, FRAME_MAX)
    assert writer.count == 0, "its number is still free"
    data = writer.seal(_filled(FRAME_MAX, goodbye=True))
    assert len(data) == FRAME_MAX
    assert FrameReader(pb.NodeFrame).read(data).HasField("goodbye")


def test_a_reader_refuses_what_a_writer_would_never_send() -> None:
    with pytest.raises(WireError, match="above"):
        FrameReader(pb.NodeFrame).read(_filled(FRAME_MAX + 1, draining=True).SerializeToString())


def test_a_frame_of_an_unknown_kind_has_the_ordinary_cap() -> None:
    unknown = b"\x08\x01" + b"\xfa\x3e" + _varint(FRAME_MAX) + b"x" * FRAME_MAX  # field 1007
    with pytest.raises(WireError, match="above"):
        FrameReader(pb.NodeFrame).read(unknown)


@pytest.mark.parametrize("body", ["hello", "config_result", "provider_status", "welcome", "config_refresh"])
def test_frames_that_carry_a_whole_state_may_be_larger(body: str) -> None:
    assert frame_limit(body) == CONFIG_FRAME_MAX
    assert CONFIG_FRAME_MAX * 2 <= GRPC_MESSAGE_MAX


def test_a_whole_configuration_is_bounded_too() -> None:
    frame = pb.EdgeFrame(frame_seq=1)
    frame.config_refresh.payload.providers.add(id="x" * CONFIG_FRAME_MAX)
    with pytest.raises(FrameTooLargeError):
        FrameWriter[pb.EdgeFrame]().seal(frame)
    with pytest.raises(WireError, match="above"):
        FrameReader(pb.EdgeFrame).read(frame.SerializeToString())


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
