"""Structured output: the tokens a grammar permits at every position of a sequence and its drafts.

docs/structured_output.md lists what is supported.
"""
