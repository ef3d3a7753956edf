"""Settings that hold for every test: Hypothesis profiles (`IOP_EXAMPLES=10000` for the long runs), anyio's loop."""

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "iop",
    max_examples=int(os.environ.get("IOP_EXAMPLES", "100")),
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("iop")


@pytest.fixture
def anyio_backend() -> str:
    """asyncio, unless a test module asks for both loops by its own fixture."""
    return "asyncio"
