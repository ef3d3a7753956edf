"""The adapter kinds that a Node has; apart from the adapters, so that a payload can be read without loading them."""

OPENAI_KINDS = frozenset({"openai_compat", "vllm", "llama_cpp", "sglang", "lmstudio"})
HTTP_KINDS = OPENAI_KINDS | {"ollama"}
KINDS = HTTP_KINDS | {"cli", "echo"}
