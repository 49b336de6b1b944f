"""The target service: its HTTP app and the verification strategies."""
