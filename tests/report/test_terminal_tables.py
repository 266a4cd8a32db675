"""Tables for the terminal, as rich renders them."""

import io

import numpy as np
from rich.console import Console

from emcaps.data.prepared import Examples
from emcaps.report.progress import counting_bar
from emcaps.report.tables import confusion_table, holdings_table, pairs_table
from emcaps.train.evaluate import Evaluation
from own_images import bars


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


def test_many_classes_are_shown_by_their_worst_confusions():
    confusion = [[10 if true == given else 0 for given in range(30)] for true in range(30)]
    confusion[7][3], confusion[2][29] = 30, 5
    names = [f"class[{number}]" for number in range(30)]
    table = printed(confusion_table(Evaluation(0.9, 335, confusion), names, "t"))
    rows = [line.split() for line in table.splitlines() if "class" in line]
    assert rows == [["class[7]", "class[3]", "30", "75.0"], ["class[2]", "class[29]", "5", "33.3"]]


def test_the_images_of_each_class_are_counted():
    def part(count, classes=3):
        images, labels = bars(count, classes)
        names = tuple(f"class[{number}]" for number in range(classes))
        return Examples(images, labels.astype(np.int16), names=names)

    rows = [line.split() for line in printed(holdings_table({"train": part(12), "test": part(4)}, "mine")).splitlines()]
    for expected in (["class[0]", "4", "2"], ["class[2]", "4", "1"], ["all", "12", "4"]):
        assert expected in rows
    many = printed(holdings_table({"train": part(60, 30), "test": part(30, 30)}, "mine"))
    assert ["11", "more", "22", "11"] in [line.split() for line in many.splitlines()]
