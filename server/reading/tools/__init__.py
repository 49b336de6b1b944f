"""OpenAI's tool calling: the calls that a model's text holds, and grammars that make it call.

docs/structured_output.md lists the formats.
"""
