"""vLLM as an engine: its scheduler, paged memory and parallelism, our draws (docs/vllm.md)."""
