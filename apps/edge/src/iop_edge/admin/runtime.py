"""What refresh and status need of the running Edge; `app.py` implements it, tests fake it."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Mapping, Sequence
from typing import Protocol, TypeVar

from attrs import frozen

from iop_config import EdgeConfig, Loaded
from iop_refresh import NodeResult


class PayloadView(Protocol):
    """What one Node is told, reduced to what a comparison of two generations needs."""

    @property
    def version(self) -> str:
        """The digest of this payload alone; equal means that the Node need not hear of the new generation (R8)."""

    @property
    def generation(self) -> int:
        """Rises with each change of this payload."""


class SnapshotView(Protocol):
    """One config generation, complete and immutable (R7)."""

    @property
    def config(self) -> EdgeConfig: ...

    @property
    def version(self) -> str: ...

    @property
    def generation(self) -> int: ...

    @property
    def payloads(self) -> Mapping[str, PayloadView]:
        """By node id, every configured Node."""


SnapshotT = TypeVar("SnapshotT", bound=SnapshotView)


@frozen
class NodeView:
    """One configured Node as a refresh sees it."""

    connected: bool
    acked_generation: int = 0
    """The payload generation that it acknowledged last in this session; 0 for none."""


class Runtime(Protocol[SnapshotT]):
    """The running Edge. All methods run on the event loop but the three `load_…`, which are called in a thread."""

    @property
    def snapshot(self) -> SnapshotT:
        """The generation in force."""

    @property
    def digest_key(self) -> bytes:
        """The key of `config_version` and of the fingerprints that stand for redacted values."""

    def load_files(self) -> Loaded:
        """Read the files that `run` was started with, each in one whole version (R11).

        Raises `ConfigError`. Called in a thread: touches no state of the Edge.
        """

    def load_inline(self, text: str) -> Loaded:
        """Load a config that was sent with the request; relative paths count from the main file's folder.

        Raises `ConfigError`. Called in a thread: touches no state of the Edge.
        """

    def load_kept(self, documents: Sequence[tuple[str, str]]) -> Loaded:
        """Load kept texts, `(path of the original file, text)`, the main file first (R15).

        Raises `ConfigError`. Called in a thread: touches no state of the Edge.
        """

    def build(self, config: EdgeConfig, version: str) -> SnapshotT:
        """Return the whole next generation, pool spec and validated Node payloads included. Pure: touches nothing.

        Raises `ConfigError` where the config cannot become a generation. May be called in a thread.
        """

    def swap(self, snapshot: SnapshotT) -> frozenset[str]:
        """Put `snapshot` in force and reconfigure the pool, with no await between; cannot fail.

        Returns the ids of the connected Nodes whose payload changed.
        """

    def push(self, node_ids: frozenset[str]) -> Mapping[str, Future[NodeResult]]:
        """Start sending these Nodes the payload in force; each future gets that Node's outcome and never raises.

        Returns at once. The outcome's `state` is `acked`, `nacked`, `no_answer` or `disconnected`. Cancelling a
        future does not take the push back.
        """

    def nodes(self) -> Mapping[str, NodeView]:
        """Every configured Node by id."""

    def status(self) -> dict[str, object]:
        """The parts `nodes`, `providers`, `models` and `leaked_slots` of `GET /status`, ready for JSON."""

    def explain(self, model: str, input_tokens: int) -> dict[str, object]:
        """Why a request of this model would go where it would go now (P15), ready for JSON; or LookupError."""
