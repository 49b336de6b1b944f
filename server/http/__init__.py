"""What stands around every endpoint: request ids, keys, limits, server-sent events, /health, /metrics."""
