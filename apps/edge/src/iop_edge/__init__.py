"""The IOP Edge: one OpenAI-compatible endpoint in front of a pool of inference providers."""
