"""What every room may use and what uses no room: names and bounds said once, a circuit breaker, a prefix comparison."""
