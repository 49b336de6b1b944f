"""`python -m tandem`: the command line, also where no entry point is installed."""

from tandem.cli import main

main()
