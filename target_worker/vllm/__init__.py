"""The target engine on vLLM (docs/vllm.md)."""
