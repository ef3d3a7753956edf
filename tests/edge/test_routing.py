"""The catalog of a generation, and what the pool is told of it (E1, C3, C4, C16, P6, P7, C12)."""

from __future__ import annotations

from attrs import evolve

from iop_config import AdapterConfig, HealthConfig, ModelRoute, ServerConfig
from iop_edge.routing import ROUTE_CAPACITY, GenerationPolicy, Target, build_catalog, pool_spec
from iop_pool import GroupSpec, ProviderSpec, QueuePolicy
from support.fake_edge_node import config, model, node, provider
from support.rules import rule

CLOUD = AdapterConfig(name="cloud", type="openai_compat", provider="openai", base_url="https://api.example.com/v1")


@rule("E1", "C4")
def test_a_model_maps_each_provider_to_its_place_and_served_name() -> None:
    adapter = AdapterConfig(
        name="shared", type="vllm", provider="label", base_url="http://h/v1", request_timeout_ms=5000
    )
    edge = config(
        node(
            "n1",
            provider("a", adapter="shared"),
            provider("b", adapter="shared", request_timeout_ms=70),
            adapters=[adapter],
        ),
        models=[
            model("m", "a", "b", context_window_tokens=100, default_max_tokens=10, min_max_tokens=5, display_name="M")
        ],
    )
    entry = build_catalog(edge).find("m")
    assert entry is not None
    assert dict(entry.targets) == {
        "a": Target("a", "n1", "shared", "vllm", "label", "local_inference", "served", 5000),
        "b": Target("b", "n1", "shared", "vllm", "label", "local_inference", "served", 70),
    }
    assert entry.policy == GenerationPolicy(10, 5, None)
    assert (entry.display_name, entry.context_window_tokens, entry.is_route) == ("M", 100, False)
    assert build_catalog(edge).find("a") is None


@rule("C3", "P2")
def test_the_pool_gets_one_group_per_model_in_the_order_of_the_file() -> None:
    edge = config(node("n1", provider("a"), provider("b")), models=[model("m", "b", "a"), model("k", "a")])
    assert pool_spec(edge).groups == (GroupSpec("m", ("b", "a")), GroupSpec("k", ("a",)))


@rule("P6", "P7", "C11", "C12")
def test_the_pool_gets_each_providers_numbers_and_both_queue_policies() -> None:
    adapter = AdapterConfig(name="ad", type="vllm", base_url="http://h/v1", max_queue=3, queue_timeout_ms=9)
    one = provider(
        "a",
        adapter="ad",
        capacity=4,
        long_context_capacity=1,
        priority=7,
        queue_timeout_ms=0,
        health=HealthConfig(probe=True),
    )
    off = provider("b", adapter="gone", enabled=False)
    edge = config(
        node("n1", one, off, adapters=[adapter]),
        models=[model("m", "a", "b")],
    )
    edge = evolve(edge, long_context_threshold_tokens=77, server=ServerConfig(reconnect_grace_ms=12))
    spec = pool_spec(edge)
    assert spec.providers[0] == ProviderSpec(
        id="a",
        node="n1",
        capacity=4,
        long_context_capacity=1,
        priority=7,
        queue=QueuePolicy(None, 0),
        adapter_queue=QueuePolicy(3, 9),
        probe_required=True,
    )
    assert spec.providers[1].enabled is False
    assert (spec.long_context_threshold_tokens, spec.reconnect_grace_ms) == (77, 12)


@rule("C16", "E1")
def test_a_route_shares_the_slots_of_the_providers_on_its_adapter() -> None:
    edge = config(
        node("n1", provider("a", adapter="x"), provider("b", adapter="x", enabled=False), provider("c")),
        node("n2", provider("d", adapter="x")),
        models=[model("m", "a")],
        model_routes=(
            ModelRoute(model="any", adapter="x", target="t"),
            ModelRoute(model="one", adapter="x", target="u", node="n2"),
        ),
    )
    groups = {group.id: group.providers for group in pool_spec(edge).groups}
    assert groups == {"m": ("a",), "any": ("a", "b", "d"), "one": ("d",)}
    entry = build_catalog(edge).find("one")
    assert entry is not None
    assert entry.is_route
    assert entry.targets["d"] == Target("d", "n2", "x", "vllm", None, "local_inference", "u")


@rule("C16")
def test_an_adapter_that_no_provider_uses_gets_a_stand_in() -> None:
    cloud = evolve(CLOUD, queue_timeout_ms=5, request_timeout_ms=6)
    edge = config(
        node("n1", provider("a"), adapters=[cloud]),
        node("n2", provider("b"), adapters=[evolve(CLOUD, enabled=False)]),
        models=[model("m", "a", "b")],
        model_routes=(ModelRoute(model="gpt", adapter="cloud", target="gpt-4o-mini"),),
    )
    entry = build_catalog(edge).find("gpt")
    assert entry is not None
    assert dict(entry.targets) == {
        "route:n1/cloud": Target(
            "route:n1/cloud", "n1", "cloud", "openai_compat", "openai", "api", "gpt-4o-mini", 6, owned=False
        )
    }
    spec = pool_spec(edge)
    assert spec.providers[-1] == ProviderSpec(
        id="route:n1/cloud", node="n1", capacity=ROUTE_CAPACITY, adapter_queue=QueuePolicy(None, 5)
    )


@rule("C16")
def test_two_routes_on_one_adapter_share_one_stand_in() -> None:
    edge = config(
        node("n1", provider("a"), adapters=[CLOUD]),
        models=[model("m", "a")],
        model_routes=(
            ModelRoute(model="x", adapter="cloud", target="1"),
            ModelRoute(model="y", adapter="cloud", target="2"),
        ),
    )
    assert [entry.id for entry in pool_spec(edge).providers] == ["a", "route:n1/cloud"]
