"""The command line: `tandem up`, `serve`, `draft`, `target`, `doctor`."""

__version__ = "0.1.0"
