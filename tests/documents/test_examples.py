"""The code and the output that the pages show are what runs and what is printed."""

import contextlib
import io
import re

import pytest

from documents.links import PAGES
from emcaps.documents.page_code import python_blocks
from emcaps.documents.recorded import ROOT

TEXTS = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
# The blocks of a tutorial are one program, which test_tutorials.py runs.
ALONE = {page: text for page, text in TEXTS.items() if not page.startswith("docs/tutorials/")}
PYTHON = [(page, code) for page, text in ALONE.items() for code in python_blocks(text)]
DESCRIBED = [
    (page, shown)
    for page, text in TEXTS.items()
    for shown in re.findall(r"^\$ emcaps describe small\n(.*?)^```$", text, re.M | re.S)
]


@pytest.mark.parametrize(("page", "code"), PYTHON)
def test_the_python_of_a_page_runs(page, code):
    with contextlib.redirect_stdout(io.StringIO()):
        exec(code, {})


@pytest.mark.parametrize(("page", "shown"), DESCRIBED)
def test_describe_prints_what_a_page_shows(page, shown, monkeypatch, capsys):
    from emcaps import cli

    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.argv", ["emcaps", "describe", "small"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert [line.rstrip() for line in shown.splitlines()] == printed


def test_the_readme_has_python_and_a_page_describes_the_network():
    assert "README.md" in dict(PYTHON)
    assert DESCRIBED
