"""The command line: `tandem up`, `serve`, `draft`, `target`, `doctor`."""
