"""GGUF files: read, described as a transformers configuration, and converted to a folder; all of it, or a refusal."""
