"""Tandem from Python (docs/python.md): gateway and workers in this process, or a client of a gateway that runs."""
