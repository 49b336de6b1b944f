"""From logits to a token: the order of processing, the shared noise, the draw."""
