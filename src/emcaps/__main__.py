"""`python -m emcaps` is the command line."""

from emcaps.cli import main

main()
