"""Where draft tokens come from: a model, prompt lookup, a predicted output."""
