"""What every room may use and what uses no room: names and bounds, a circuit breaker, a prefix comparison."""
