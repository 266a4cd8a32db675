"""The tables and pictures of README.md and docs/, made from the recorded runs: `python -m emcaps.documents`."""
