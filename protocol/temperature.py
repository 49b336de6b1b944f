"""Below which temperature a request is greedy: gateway and workers must agree, and a draw must not need messages."""

GREEDY_TEMPERATURE = 1e-5
"""Below this one token is left: the lowest id among the likeliest. vLLM draws the same line."""
