"""Verification strategies: pure functions from distributions and drafts to accepted tokens."""
