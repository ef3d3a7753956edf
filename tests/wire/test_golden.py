"""Released protocols stay readable: golden bytes of every frame, unknown fields, an older peer beside a newer one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from iop_wire import runtime_pb2 as pb
from support.frames import edge_frames, node_frames
from support.link import Edge, RawNode, joined, spec
from support.rules import rule

GOLDEN = Path(__file__).parent / "golden" / "protocol-1.json"
"""Name of the frame -> its bytes in hex. Never edited: a later protocol gets a file of its own beside it."""

SAMPLES: dict[str, Message] = {
    **{f"NodeFrame.{name}": frame for name, frame in node_frames().items()},
    **{f"EdgeFrame.{name}": frame for name, frame in edge_frames().items()},
}
STORED: dict[str, str] = json.loads(GOLDEN.read_text(encoding="ascii"))


def _frame_type(name: str) -> type[Message]:
    return pb.NodeFrame if name.startswith("NodeFrame") else pb.EdgeFrame


@rule("N4")
@pytest.mark.parametrize("name", sorted(STORED))
def test_the_bytes_of_a_released_protocol_still_say_the_same(name: str) -> None:
    data = bytes.fromhex(STORED[name])
    frame = _frame_type(name).FromString(data)
    assert frame == SAMPLES[name]
    assert frame.SerializeToString(deterministic=True) == data


def test_every_kind_of_frame_has_golden_bytes() -> None:
    kinds = {
        f"{descriptor.name}.{member.name}"
        for descriptor in (pb.NodeFrame.DESCRIPTOR, pb.EdgeFrame.DESCRIPTOR)
        for member in descriptor.oneofs_by_name["body"].fields
    }
    assert kinds == SAMPLES.keys() == STORED.keys()


def test_every_field_of_the_wire_is_set_in_some_sample() -> None:
    """Or a new field would not be held to its number and type by any golden bytes."""
    seen = {name for frame in SAMPLES.values() for name in _set_fields(frame)}
    known = {
        f"{message.name}.{member.name}"
        for message in pb.DESCRIPTOR.message_types_by_name.values()
        for member in message.fields
    }
    assert known - seen == set()


def test_enum_values_keep_their_numbers() -> None:
    numbers = {name: list(enum.values_by_number) for name, enum in pb.DESCRIPTOR.enum_types_by_name.items()}
    assert numbers == {
        "ConfigStatus": [0, 1, 2, 3],
        "ProviderHealth": [0, 1, 2, 3],
        "TerminalKind": [0, 1, 2, 3],
        "UsageSource": [0, 1, 2],
        "ContextClass": [0, 1, 2],
        "SessionEndReason": [0, 1, 2, 3, 4, 5],
    }
    # The ones a program acts on, by name: a swap of two would pass the list above.
    assert (pb.CONFIG_STATUS_APPLIED, pb.CONFIG_STATUS_REJECTED, pb.CONFIG_STATUS_SUPERSEDED) == (1, 2, 3)
    assert (pb.TERMINAL_KIND_COMPLETED, pb.TERMINAL_KIND_FAILED, pb.TERMINAL_KIND_CANCELLED) == (1, 2, 3)
    assert (pb.PROVIDER_HEALTH_HEALTHY, pb.PROVIDER_HEALTH_DEGRADED, pb.PROVIDER_HEALTH_UNHEALTHY) == (1, 2, 3)
    assert (pb.SESSION_END_REASON_FENCED, pb.SESSION_END_REASON_DUPLICATE_NODE) == (1, 2)
    assert (pb.SESSION_END_REASON_EDGE_SHUTDOWN, pb.SESSION_END_REASON_PROTOCOL_ERROR) == (3, 4)
    assert (pb.SESSION_END_REASON_UNRESPONSIVE, pb.CONTEXT_CLASS_LONG, pb.USAGE_SOURCE_ESTIMATE) == (5, 2, 2)


def _set_fields(message: Message) -> Iterator[str]:
    for member, value in message.ListFields():
        yield f"{message.DESCRIPTOR.name}.{member.name}"
        if member.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in value if member.is_repeated else (value,):
                yield from _set_fields(inner)


# ---------------------------------------------------------------- a peer of a later version


class Later:
    """The wire as a later version might have it: a field more in each message, a frame kind more in each direction."""

    def __init__(self) -> None:
        file = descriptor_pb2.FileDescriptorProto()
        pb.DESCRIPTOR.CopyToProto(file)
        file.name, old, file.package = "later.proto", f".{file.package}.", "iop.later"
        for message in file.message_type:
            for member in message.field:
                if member.type_name:
                    member.type_name = member.type_name.replace(old, ".iop.later.")
            extra = message.field.add(name="added_later", number=500, label=1, type=9)
            extra.json_name = "addedLater"
            if message.name.endswith("Frame"):
                added = message.field.add(name="new_kind", number=501, label=1, type=9)
                added.oneof_index = next(n for n, oneof in enumerate(message.oneof_decl) if oneof.name == "body")
        for method in (method for service in file.service for method in service.method):
            method.input_type = method.input_type.replace(old, ".iop.later.")
            method.output_type = method.output_type.replace(old, ".iop.later.")
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        self._pool = pool

    def type(self, name: str) -> type[Message]:
        found: type[Message] = message_factory.GetMessageClass(self._pool.FindMessageTypeByName(f"iop.later.{name}"))
        return found


LATER = Later()


@rule("N4")
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_what_an_older_peer_sends_means_the_same_to_a_later_one(name: str) -> None:
    later = LATER.type(name.partition(".")[0]).FromString(SAMPLES[name].SerializeToString())
    assert later.WhichOneof("body") == name.partition(".")[2]
    assert later.SerializeToString(deterministic=True) == SAMPLES[name].SerializeToString(deterministic=True)


@rule("N4")
@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_fields_of_a_later_peer_are_kept_and_change_nothing(name: str) -> None:
    later = LATER.type(name.partition(".")[0]).FromString(SAMPLES[name].SerializeToString())
    _add_everywhere(later)
    data = later.SerializeToString(deterministic=True)
    ours = _frame_type(name).FromString(data)
    assert len(ours.SerializeToString()) == len(data)
    ours.DiscardUnknownFields()
    assert ours == SAMPLES[name]


def _add_everywhere(message: Message) -> None:
    message.added_later = "from the future"  # type: ignore[attr-defined]
    for member, value in message.ListFields():
        if member.type == FieldDescriptor.TYPE_MESSAGE:
            for inner in value if member.is_repeated else (value,):
                _add_everywhere(inner)


@rule("N4")
def test_a_later_node_is_welcomed_and_its_runs_work_whatever_else_it_says() -> None:
    edge = Edge()
    raw = RawNode(edge)
    hello = LATER.type("Hello").FromString(raw.hello.SerializeToString())
    _add_everywhere(hello)
    raw.hello.ParseFromString(hello.SerializeToString())
    live = raw.join()
    raw.frames()
    unknown = LATER.type("NodeFrame")(frame_seq=raw.writer.count + 1, new_kind="what is this")
    live.receive(unknown.SerializeToString())
    raw.writer._last += 1
    assert live.machine.over is None
    assert live.machine.dropped == 1
    raw.send(heartbeat=pb.Heartbeat(n=1))
    assert raw.frames()[0].heartbeat_ack.n == 1


@rule("N4")
def test_a_later_edge_is_understood_and_its_unknown_frames_are_counted() -> None:
    edge = Edge()
    node = joined(edge)
    assert node.live is not None
    machine = node.live.machine
    unknown = LATER.type("EdgeFrame")(frame_seq=machine._writer.count + 1, new_kind="what is this")
    machine._writer._last += 1
    node.session.receive(unknown.SerializeToString(), edge.clock())
    assert node.session.dropped == 1
    run = node.start(spec())
    node.exchange()
    assert [order.run_id for order in node.orders] == [run.attempt.spec.run_id]
    assert node.over is None
