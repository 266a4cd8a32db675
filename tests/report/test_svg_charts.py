"""Line charts: what is drawn, and that the values can be read without looking at the drawing."""

import json
import math
import re

import pytest

from emcaps.report.html import Html, page, tag
from emcaps.report.svg_charts import MOST_LINES, MOST_POINTS, STYLE, Line, legend, line_chart
from report.structure import check_page


def chart(*lines, **options):
    figure = line_chart("Loss", lines, **options)
    body = Html(f'<main id="content">{tag("h1", "x")}{figure}</main>')
    return figure, check_page(page("x", body, generator="test"))


def drawn_points(figure):
    return [[tuple(map(float, at.split(","))) for at in line.split()] for line in re.findall(r'points="(.*?)"', figure)]


def test_points_lie_where_their_values_are():
    figure, _ = chart(Line("a", [(0, 0.0), (50, 5.0), (100, 10.0)]))
    assert drawn_points(figure) == [[(0, 1000), (500, 500), (1000, 0)]]


def test_a_log_scale_where_values_differ_much_and_only_there():
    values = [(0, 1.0), (50, 0.1), (100, 0.01)]
    figure, found = chart(Line("a", values), scale="log")
    assert drawn_points(figure) == [[(0, 0), (500, 500), (1000, 1000)]]
    assert "logarithmic" in found.charts[0]
    figure, found = chart(Line("a", [(0, 1.0), (100, 0.5)]), scale="log")
    assert drawn_points(figure) == [[(0, 0), (1000, 500)]]
    assert "logarithmic" not in found.charts[0]


def test_the_values_are_in_a_table_and_in_words():
    _, found = chart(Line("a", [(10, 0.25), (20, 0.125)]), Line("b", [(20, 0.5)], 1), unit=" %")
    assert found.tables[0]["cells"] == ["step", "a", "b", "10", "0.25", "", "20", "0.125", "0.5"]
    assert "a: from 0.25 % at step 10 to 0.125 % at step 20. b: 0.5 % at step 20." in found.charts[0]


def test_points_that_are_not_finite_are_left_out_and_no_points_give_no_chart():
    figure, _ = chart(Line("a", [(0, math.nan), (1, 2.0), (2, math.inf), (3, 4.0)]), Line("b", [(0, math.nan)], 1))
    assert len(drawn_points(figure)) == 1
    assert len(drawn_points(figure)[0]) == 2
    assert line_chart("Loss", [Line("a", []), Line("b", [(0, math.nan)])]) == ""


@pytest.mark.parametrize("value", [0.0, 1.0, -3.0, 1e-12, 1e12])
@pytest.mark.parametrize("scale", ["linear", "zero", "log"])
def test_equal_values_and_a_single_point_are_drawn(value, scale):
    for points in ([(5, value)], [(5, value), (9, value)], [(0, value)]):
        figure, _ = chart(Line("a", points), scale=scale)
        if scale == "log" and value <= 0:
            assert figure == ""
        else:
            assert "nan" not in figure
            assert figure.count('class="line line-1"') + figure.count('class="dot line-1"') == 1


@pytest.mark.parametrize("values", [(1e308, -1e308, 1.0), (5e-324, 1e-323), (1.0, 1.0 + 2**-52), (1e-99, 1e99)])
@pytest.mark.parametrize("scale", ["linear", "zero", "log"])
def test_absurd_values_do_no_harm(values, scale):
    figure, _ = chart(Line("a", list(enumerate(values))), scale=scale)
    assert "nan" not in figure
    assert "inf" not in figure


def test_long_lines_are_thinned_and_keep_their_end():
    figure, found = chart(Line("a", [(step, step / 7) for step in range(1, 10_001)]))
    (points,) = drawn_points(figure)
    assert len(points) <= MOST_POINTS
    assert points[-1][0] == 1000
    assert "10,000" in found.tables[0]["cells"]


def test_every_line_of_a_full_chart_has_a_look_of_its_own():
    lines = [Line(f"run {number}", [(0, 1.0), (1, number)], number) for number in range(MOST_LINES)]
    figure, _ = chart(*lines)
    looks = re.findall(r'<polyline class="(.*?)"', figure)
    assert len(set(looks)) == MOST_LINES
    assert set(re.findall(r'<line class="(.*?)"', legend([(line.name, line.style) for line in lines]))) == {
        look.removeprefix("line ") for look in looks
    }
    assert all(f".{name} " in STYLE for look in looks for name in look.split()[1:])


def test_the_script_gets_the_values_and_odd_names():
    figure, _ = chart(Line("</script>&", [(1, 0.123456), (2, 2.0)]))
    data = json.loads(re.search(r'<script type="application/json">(.*?)</script>', figure)[1])
    assert data["lines"] == [{"name": "</script>&", "x": [1, 2], "y": [0.1235, 2.0]}]
