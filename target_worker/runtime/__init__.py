"""The target engine for every model that runs on the loop (engines/runtime)."""
