"""OpenAI's tool calling: which calls a model's text holds, and grammars that make it call (docs/structured_output.md)."""
