"""Run the command line as `python -m emcaps`."""

from emcaps.cli import main

main()
