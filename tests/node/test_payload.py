"""What the Edge sends becomes settings, or every fault in it at once; a secret is never shown (N1, R9, C23)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from iop_node.payload import PayloadError, settings_from
from iop_node.settings import (
    AdapterSettings,
    CliSettings,
    EchoSettings,
    OllamaSettings,
    OpenAICompatSettings,
    ProviderSettings,
    SecretPair,
)
from iop_wire import runtime_pb2 as pb
from support.rules import rule

CANARY = "canary-7f3a"


def whole() -> pb.NodeConfigPayload:
    """A payload with one adapter of each kind of settings."""
    payload = pb.NodeConfigPayload(config_version="v1", generation=3, runtime=pb.NodeRuntimeConfig(concurrency=8))
    vllm = payload.adapters.add(key="gpu", kind="vllm", enabled=True, idle_timeout_ms=1500)
    vllm.openai_compat.provider = "label"
    vllm.openai_compat.base_url = "http://127.0.0.1:8000/v1/"
    vllm.openai_compat.headers.add(name="Authorization", value=f"Bearer {CANARY}")
    vllm.openai_compat.context_size = 4096
    payload.adapters.add(key="o", kind="ollama", enabled=True).ollama.base_url = "http://127.0.0.1:11434"
    cli = payload.adapters.add(key="c", kind="cli", enabled=True, request_timeout_ms=60_000).cli
    cli.command = "claude"
    cli.args.extend(["-p"])
    cli.env.add(name="KEY", value=CANARY)
    payload.adapters.add(key="e", kind="echo", enabled=True).echo.SetInParent()
    payload.providers.add(
        id="p",
        adapter="gpu",
        category="local_inference",
        models=["m"],
        enabled=True,
        capacity=2,
        probe=pb.ProbePolicy(enabled=True, interval_ms=500),
        request_timeout_ms=2000,
    )
    return payload


@rule("N1", "C17")
def test_everything_that_the_edge_says_arrives() -> None:
    settings = settings_from(whole())
    assert (settings.version, settings.generation, settings.concurrency) == ("v1", 3, 8)
    assert settings.adapters == (
        AdapterSettings(
            "gpu",
            "vllm",
            OpenAICompatSettings(
                "http://127.0.0.1:8000/v1", "label", (SecretPair("Authorization", f"Bearer {CANARY}"),), 4096
            ),
            idle_timeout=1.5,
        ),
        AdapterSettings("o", "ollama", OllamaSettings("http://127.0.0.1:11434")),
        AdapterSettings(
            "c", "cli", CliSettings("claude", ("-p",), env=(SecretPair("KEY", CANARY),)), request_timeout=60.0
        ),
        AdapterSettings("e", "echo", EchoSettings()),
    )
    assert settings.providers == (
        ProviderSettings(
            "p", "gpu", "local_inference", ("m",), capacity=2, probe=True, probe_interval=0.5, request_timeout=2.0
        ),
    )


@rule("C23")
def test_no_secret_is_in_a_repr() -> None:
    assert CANARY not in repr(settings_from(whole()))
    assert "<redacted>" in repr(settings_from(whole()))


def break_kind(payload: pb.NodeConfigPayload) -> None:
    payload.adapters[0].kind = "quantum"


def break_settings(payload: pb.NodeConfigPayload) -> None:
    payload.adapters[0].ClearField("openai_compat")


def break_url(payload: pb.NodeConfigPayload) -> None:
    payload.adapters[0].openai_compat.base_url = f"ftp://user:{CANARY}@host/"


def break_port(payload: pb.NodeConfigPayload) -> None:
    payload.adapters[1].ollama.base_url = "http://host:99999"


def break_header_name(payload: pb.NodeConfigPayload) -> None:
    payload.adapters[0].openai_compat.headers.add(name="a b", value=CANARY)


def break_header_value(payload: pb.NodeConfigPayload) -> None:
    payload.adapters[0].openai_compat.headers.add(name="x", value=f"{CANARY}\r\nevil: 1")


def break_command(payload: pb.NodeConfigPayload) -> None:
    payload.adapters[2].cli.command = ""


def break_args(payload: pb.NodeConfigPayload) -> None:
    payload.adapters[2].cli.args.append("a\x00b")


def break_env(payload: pb.NodeConfigPayload) -> None:
    payload.adapters[2].cli.env.add(name="A=B", value=CANARY)


def break_format(payload: pb.NodeConfigPayload) -> None:
    payload.adapters[2].cli.output_format = "xml"


def break_key(payload: pb.NodeConfigPayload) -> None:
    payload.adapters[1].key = "gpu"


def break_provider_id(payload: pb.NodeConfigPayload) -> None:
    payload.providers.add().CopyFrom(payload.providers[0])


def break_adapter(payload: pb.NodeConfigPayload) -> None:
    payload.providers[0].adapter = "nowhere"


def break_enabled(payload: pb.NodeConfigPayload) -> None:
    payload.adapters[0].enabled = False


def break_capacity(payload: pb.NodeConfigPayload) -> None:
    payload.providers[0].capacity = 0


@rule("R9", "N3")
@pytest.mark.parametrize(
    ("broken", "path", "code"),
    [
        (break_kind, "adapters[gpu].kind", "unknown-kind"),
        (break_settings, "adapters[gpu]", "wrong-settings"),
        (break_url, "adapters[gpu].openai_compat.base_url", "bad-url"),
        (break_port, "adapters[o].ollama.base_url", "bad-url"),
        (break_header_name, "adapters[gpu].openai_compat.headers['a b']", "bad-header"),
        (break_header_value, "adapters[gpu].openai_compat.headers[x]", "bad-header"),
        (break_command, "adapters[c].cli.command", "no-command"),
        (break_args, "adapters[c].cli.args", "nul"),
        (break_env, "adapters[c].cli.env[A=B]", "bad-env"),
        (break_format, "adapters[c].cli.output_format", "unknown-value"),
        (break_key, "adapters[gpu]", "duplicate-key"),
        (break_provider_id, "providers[p]", "duplicate-id"),
        (break_adapter, "providers[p].adapter", "unknown-adapter"),
        (break_enabled, "providers[p].adapter", "adapter-disabled"),
        (break_capacity, "providers[p].capacity", "bad-capacity"),
    ],
)
def test_a_fault_is_told_with_its_place_and_without_the_secret(
    broken: Callable[[pb.NodeConfigPayload], None], path: str, code: str
) -> None:
    payload = whole()
    broken(payload)
    with pytest.raises(PayloadError) as caught:
        settings_from(payload)
    assert (path, code) in [(fault.path, fault.code) for fault in caught.value.faults]
    assert CANARY not in str(caught.value) + repr(caught.value.faults)


@rule("R9")
def test_all_faults_are_told_at_once() -> None:
    payload = whole()
    for broken in (break_url, break_command, break_adapter):
        broken(payload)
    with pytest.raises(PayloadError) as caught:
        settings_from(payload)
    assert {fault.code for fault in caught.value.faults} == {"bad-url", "no-command", "unknown-adapter"}


@rule("C8")
def test_what_is_disabled_is_not_checked() -> None:
    payload = whole()
    payload.adapters.add(key="later", kind="quantum", enabled=False)
    payload.providers.add(id="off", adapter="nowhere", enabled=False, capacity=1)
    settings = settings_from(payload)
    assert not settings.adapters[-1].enabled
    assert settings.providers[-1].id == "off"
