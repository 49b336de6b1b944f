"""The draft engine on vLLM (docs/vllm.md)."""
