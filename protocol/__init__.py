"""The wire between gateway and workers: messages, the prefix hash, errors. Nothing else lives here."""
