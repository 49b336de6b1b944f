"""Models that think aloud first: what is reasoning, what is the answer (docs/structured_output.md)."""
