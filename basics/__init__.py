"""Used by every package, and using none: names and bounds, a circuit breaker, a prefix comparison."""
