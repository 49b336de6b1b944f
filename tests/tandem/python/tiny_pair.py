"""How the tests of Tandem in this process load their models, and what they ask."""

from __future__ import annotations

from typing import Any

EXACT: dict[str, Any] = {"device": "cpu", "batch_invariant": True, "target_options": {"slots": 16}}
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
