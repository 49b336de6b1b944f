"""Measurements of a running Tandem, each a script: `python -m benchmarks.NAME --help`."""
