"""Fixtures for the command line: a way to call it, and small data."""

import sys

import pytest

from emcaps.cli import main
from patterns import write_patterns


@pytest.fixture
def emcaps(capsys, monkeypatch, tmp_path):
    """Run `emcaps ARGUMENTS` in an empty folder; gives (exit status, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMCAPS_DATA", str(tmp_path / "data"))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["emcaps", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as stop:
            status = stop.code or 0
        out, err = capsys.readouterr()
        return status, out, err

    return run


@pytest.fixture
def data(tmp_path):
    return write_patterns(tmp_path / "data")
