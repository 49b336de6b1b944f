"""`python -m tandem`: the command line, even if no entry point is installed."""

from tandem.cli import main

main()
