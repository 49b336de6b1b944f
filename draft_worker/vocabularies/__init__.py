"""Drafts for a target with another tokenizer than the draft model's (docs/vocabularies.md)."""
