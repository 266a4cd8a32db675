"""Tables for the terminal, as rich renders them."""

import io

from rich.console import Console

from emcaps.report.progress import counting_bar
from emcaps.report.tables import confusion_table, pairs_table
from emcaps.train.evaluate import Evaluation


def printed(table, **settings):
    text = io.StringIO()
    Console(file=text, width=80, **settings).print(table)
    return text.getvalue()


def test_square_brackets_are_no_markup():
    """Paths and messages may hold them, whether or not the console reads markup."""
    for markup in (True, False):
        table = printed(pairs_table({"[a]": "pip install 'emcaps[numba]'"}, "runs/[bold]x"), markup=markup)
        for text in ("runs/[bold]x", "[a]", "'emcaps[numba]'"):
            assert text in table


def test_a_bar_shows_square_brackets(capsys):
    with counting_bar("row [one]", "images") as on_progress:
        on_progress(1, 2)
    assert "row [one]" in capsys.readouterr().err


def test_the_right_answers_of_a_confusion_matrix_are_bold():
    result = Evaluation(0.75, 8, [[3, 1], [1, 3]])
    table = printed(confusion_table(result, ("cat", "dog"), "t"), force_terminal=True, color_system="standard")
    assert table.count("\x1b[1m75.0") == 2
    assert "25.0" in table
    assert "\x1b[1m25.0" not in table
