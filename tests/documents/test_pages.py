"""Making the documents again changes nothing: every table is what the recorded runs say."""

import shutil
from pathlib import Path

import pytest

from documents.links import links_of
from emcaps.documents import __main__ as program
from emcaps.documents.pages import PAGES, find_pages, remake_page
from emcaps.documents.recorded import RESULTS, ROOT

EVERY_BLOCK = [(page, name) for page, blocks in PAGES.items() for name in blocks]


@pytest.mark.parametrize("page", find_pages(ROOT))
def test_making_a_page_again_changes_nothing(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    assert remake_page(page, text) == text


@pytest.mark.parametrize(("page", "name"), EVERY_BLOCK)
def test_a_block_is_a_table_whose_links_lead_to_runs(page, name):
    made = PAGES[page][name](str(RESULTS))
    assert all(Path(target).is_dir() for _, target in links_of(made) if target.startswith(str(RESULTS)))
    lines = made.splitlines()
    if lines[0] == lines[-1] == "```":
        return  # what a command prints
    assert lines[0].startswith("| ")
    assert set(lines[1]) <= set("|-:")
    columns = lines[1].count("|")
    rows = [line for line in lines[2:] if line.startswith("|")]
    assert rows
    assert {line.count("|") for line in rows} == {columns}


@pytest.mark.parametrize(("page", "name"), EVERY_BLOCK)
def test_every_block_stands_on_its_page(page, name):
    assert f"made by `make docs`: {name} -->" in (ROOT / page).read_text(encoding="utf-8")


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A copy of two pages. Its pictures are another test's matter."""
    for page in ("pyproject.toml", "docs/cost.md", "results/README.md"):
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / page, tmp_path / page)
    monkeypatch.setattr(program, "remake_pictures", lambda root, *, write: [])
    return tmp_path


def test_a_wrong_figure_is_found_and_then_put_right(checkout, capsys):
    page = checkout / "docs/cost.md"
    right = page.read_text(encoding="utf-8")
    wrong = right.replace("| 11.6 | 67,154 |", "| 11.5 | 67,154 |")
    assert wrong != right
    page.write_text(wrong, encoding="utf-8")
    assert program.main(["--check"], checkout) == 1
    assert capsys.readouterr().out == "would change: docs/cost.md\n"
    assert page.read_text(encoding="utf-8") == wrong
    assert program.main([], checkout) == 0
    assert capsys.readouterr().out == "changed: docs/cost.md\n"
    assert page.read_text(encoding="utf-8") == right
    assert program.main(["--check"], checkout) == 0
    assert "nothing changes" in capsys.readouterr().out


def test_a_wrong_marker_ends_the_program_with_one_line(checkout, capsys):
    with open(checkout / "docs/cost.md", "a", encoding="utf-8") as page:
        page.write("<!-- end -->\n")
    assert program.main([], checkout) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "docs/cost.md, line " in told


def test_elsewhere_than_in_a_checkout_one_line_says_so(tmp_path, capsys):
    assert program.main([], tmp_path) == 1
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"{tmp_path} is no checkout of emcaps" in told
