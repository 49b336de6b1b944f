"""The draft service: its HTTP app and its drafters."""
