"""What a tutorial tells its reader to run is run, and what it shows is what comes out."""

import re
import shlex
from pathlib import Path

import pytest

from emcaps.documents.page_code import python_blocks, run_page
from emcaps.documents.pages import PAGES
from emcaps.documents.pictures import look_alike
from emcaps.documents.recorded import ROOT

OWN_PICTURES = ROOT / "docs/tutorials/own-pictures.md"
NUMBER = re.compile(r"\d+(\.\d+)?")


def console_commands(text):
    """(command, lines that the page shows below it) of every console block."""
    blocks = re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S)
    sessions = [part.partition("\n") for block in blocks for part in re.split(r"^\$ ", block, flags=re.M)[1:]]
    return [(command, significant_lines(shown)) for command, _, shown in sessions]


def significant_lines(output):
    return [line.rstrip() for line in output.splitlines() if line.strip()]


def without_numbers(lines):
    """The lines with every number replaced, for machines on which training ends elsewhere; blanks depend on it, too."""
    return [" ".join(NUMBER.sub("#", line).split()) for line in lines]


def accuracy(lines):
    return next(float(found[1]) for line in lines if (found := re.match(r"test accuracy ([\d.]+) %", line)))


def test_every_command_about_own_pictures_does_what_the_page_shows(tmp_path, monkeypatch, capsys):
    from emcaps import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("EMCAPS_DATA", "data")
    text = OWN_PICTURES.read_text(encoding="utf-8")
    ran = []
    for command, shown in console_commands(text):
        program, *arguments = shlex.split(command)
        if program == "pip":
            continue
        if program == "python":
            assert arguments == ["make_pictures.py"]
            exec(python_blocks(text)[0], {})
            continue
        assert program == "emcaps"
        monkeypatch.setattr("sys.argv", [program, *arguments])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert not stop.value.code, command
        printed = significant_lines(capsys.readouterr().out)
        ran.append(arguments[0])
        if arguments[0] == "data":
            assert printed == shown
        elif arguments[0] == "train":
            assert without_numbers(printed) == without_numbers(shown), command
            assert accuracy(printed) == pytest.approx(accuracy(shown), abs=12), command
        else:
            answers = [line.split()[:2] for line in printed if line.lstrip().startswith("new/")]
            assert answers == [[f"new/{name}.png", name] for name in ("circle", "square", "triangle")]
            assert without_numbers(printed)[:2] == without_numbers(shown)[:2]
    assert ran == ["data", "train", "train", "predict"]
    assert look_alike(Path("sheet.png"), ROOT / "docs/images/own-pictures.png")


def test_every_other_tutorial_shows_what_its_code_prints():
    """test_pages.py makes these blocks again, which runs the code."""
    for path in (ROOT / "docs/tutorials").glob("*.md"):
        if path != OWN_PICTURES:
            shown = list(PAGES[str(path.relative_to(ROOT))])
            count = len(python_blocks(path.read_text(encoding="utf-8")))
            assert shown == [f"printed-{number + 1}" for number in range(count)]


def test_a_page_of_code_is_one_program(tmp_path, monkeypatch):
    from emcaps.documents import page_code

    monkeypatch.setattr(page_code, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text("```python\na = 2\nprint(a)\n```\nwords\n```python\nprint(a + 1)\n```\n")
    ran = run_page("page.md")
    assert ran.printed == ["2\n", "3\n"]
    assert ran.names["a"] == 2
