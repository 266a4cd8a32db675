import pytest

from emcaps.bench.cases import suite
from emcaps.bench.plots import draw_rows, sweeps
from emcaps.bench.rows import OUT_OF_MEMORY

NAMES = ("reference", "compiled", "fused", "fused, graph")


@pytest.fixture
def rows(row_of):
    """The whole suite, with times that grow with what changes."""

    def time(case, name):
        return case.batch * case.iterations * case.size * case.types * (4 - NAMES.index(name)) / 1000

    return [row_of(case, name, time(case, name)) for case in suite("all") for name in NAMES]


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_draw_rows_of_everything(tmp_path, rows, row_of, suffix, start):
    rows.append(row_of(rows[-1].case, "reference", status=OUT_OF_MEMORY))
    draw_rows(rows, tmp_path / f"bench{suffix}")
    assert (tmp_path / f"bench{suffix}").read_bytes().startswith(start)


def test_the_picture_says_how_many_times_faster_and_what_ran_out_of_memory(tmp_path, row_of):
    (case, *_), batches = suite("headline"), suite("batch")[:3]
    rows = [row_of(case, "reference", 12.0), row_of(case, "fused", 0.5)]
    rows += [row_of(each, "fused", 1.0) for each in batches] + [row_of(batches[2], "reference", status=OUT_OF_MEMORY)]
    draw_rows(rows, tmp_path / "bench.svg")
    drawn = (tmp_path / "bench.svg").read_text()
    for text in ("<!-- 24x -->", "<!-- 0.500 -->", "<!-- out of memory -->", "<!-- batch size -->"):
        assert text in drawn, text
    assert "<!-- capsule types -->" not in drawn


def test_sweeps_differ_along_one_axis(rows):
    found = sweeps(rows)
    assert [(sweep.network, sweep.axis) for sweep in found] == [
        (network, axis) for network in ("small", "full") for axis in ("batch", "iterations", "size", "types")
    ]
    for sweep in found:
        assert sweep.fixed["what"] == "forward+backward"
        for row in sweep.rows:
            assert all(getattr(row, name) == value for name, value in sweep.fixed.items())


def test_nothing_to_draw_is_told(tmp_path, row_of):
    rows = [row_of(suite("quick")[0], "reference", 1.0)]
    with pytest.raises(ValueError, match=r"nothing to draw.*--suite all"):
        draw_rows(rows, tmp_path / "bench.png")
    with pytest.raises(ValueError, match=r"written as \.png or \.svg, not as '\.pdf'"):
        draw_rows(rows, tmp_path / "bench.pdf")
