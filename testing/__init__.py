"""What tests and benchmarks share: processes, a client, models, prompts, fakes. Not part of the distribution."""
