"""The generation policy of a group, written in the words of the surface and of the runtime that was chosen (E5)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from iop_edge.errors import ApiError
from iop_edge.nodes.run import Operation
from iop_edge.routing import GenerationPolicy, Target

__all__ = ["Limits", "apply_policy", "read_limits"]
