"""The loop that serves sequences with a model, whatever computes its logits: jobs, passes, slots."""
