"""Stand-ins for models, engines and workers."""
