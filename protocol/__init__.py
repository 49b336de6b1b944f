"""What gateway and workers must agree on: messages, errors, the prefix hash, and the rules that both sides apply."""
