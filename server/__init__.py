"""The gateway: OpenAI API, chat template and (de)tokenisation, the round loop, worker clients, metrics."""
