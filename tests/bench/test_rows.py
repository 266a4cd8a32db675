import pytest

from emcaps.bench.cases import Case, suite
from emcaps.bench.rows import OUT_OF_MEMORY, Row, append_row, newest, read_rows

CASE = Case("small", 16, 32, 64, 2, "forward")


def test_rows_come_back_as_they_went(tmp_path, row_of):
    path = tmp_path / "new" / "rows.csv"
    rows = [
        row_of(CASE, "fused", 0.25),
        row_of(CASE, "reference", status=OUT_OF_MEMORY),
        row_of(CASE, "compiled", status="error: a, b"),
    ]
    rows = [row._replace(gflop=3.25, tflops=None, share_of_ceiling=None) for row in rows]  # six digits are written
    for row in rows:
        append_row(path, row)
    assert read_rows(path) == rows
    assert path.read_text().count("network,types,view") == 1
    assert read_rows(path)[0].case == CASE


def test_a_row_says_what_it_was_measured_on(row_of):
    row = row_of(suite("headline")[0], "fused", 2.0)
    assert row.images_per_s == pytest.approx(32_000)
    assert row.tflops == pytest.approx(row.gflop / 2.0)
    assert row.share_of_ceiling == pytest.approx(row.tflops / 60)
    for name in ("device", "torch", "python", "emcaps", "date", "tf32", "view"):
        assert getattr(row, name), name


def test_the_newest_row_of_a_pair_counts(row_of):
    rows = [row_of(CASE, "fused", 3.0), row_of(CASE, "reference", 9.0), row_of(CASE, "fused", 2.0)]
    assert {name: row.median_ms for (_, name), row in newest(rows).items()} == {"fused": 2.0, "reference": 9.0}


def test_rows_of_other_conditions_than_the_last_do_not_count(row_of):
    slow, fast = row_of(CASE, "fused", 3.0)._replace(tf32="off"), row_of(CASE, "reference", 9.0)._replace(tf32="on")
    assert list(newest([slow, fast]).values()) == [fast]
    assert list(newest([slow, fast, slow]).values()) == [slow]
    assert newest([]) == {}


def test_another_table_is_refused(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"no table of this version's benchmark.*name another file"):
        read_rows(path)


def test_a_damaged_line_is_named(tmp_path, row_of):
    path = tmp_path / "rows.csv"
    append_row(path, row_of(CASE, "fused", 1.0))
    path.write_text(path.read_text() + "small,16\n")
    with pytest.raises(ValueError, match=r"line 3 is damaged.*delete that line"):
        read_rows(path)


def test_a_status_of_many_lines_stays_in_one_line(tmp_path, row_of):
    path = tmp_path / "rows.csv"
    append_row(path, row_of(CASE, "fused", status="error: one\ntwo"))
    assert len(path.read_text().splitlines()) == 2
    assert read_rows(path)[0].status == "error: one two"
    assert len(Row._fields) == len(set(Row._fields))
