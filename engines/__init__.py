"""Running a causal language model, and drawing tokens from it."""
