"""The command that records the tests on a GPU, as far as it can be tested without one."""

import re

import gpu_tests
from gpu_tests import (
    ROOT,
    Outcome,
    files_to_run,
    longest_first,
    main,
    record,
    record_name,
    recorded_seconds,
    run_file,
)

TESTS = """
import pytest

def test_one():
    pass

@pytest.mark.parametrize("number", range({passing}))
def test_some(number):
    pass

@pytest.mark.skip
def test_skipped():
    pass

def test_last():
    assert {last}
"""


def test_without_a_gpu_it_refuses_and_writes_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["--out", str(tmp_path)]) == 1
    assert "torch finds no GPU here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_gpus_record_has_counts_versions_and_the_command(tmp_path, monkeypatch, capsys):
    """With a GPU that is made up, and two files of tests."""
    for name, last in (("test_a.py", True), ("test_b.py", False)):
        (tmp_path / name).write_text(TESTS.format(passing=3, last=last))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA GeForce RTX 9090")
    monkeypatch.setattr(gpu_tests, "files_to_run", lambda: [tmp_path / "test_a.py", tmp_path / "test_b.py"])
    earlier = [Outcome(str(tmp_path / f"test_{name}.py"), 5, 0, 0, seconds) for name, seconds in (("a", 3), ("b", 4))]
    (tmp_path / "geforce-rtx-9090.txt").write_text(record(earlier, "NVIDIA GeForce RTX 9090", 1, 7))
    assert main(["--out", str(tmp_path), "--jobs", "1"]) == 1  # since one fails
    printed = capsys.readouterr().out
    assert "assert False" in printed
    assert printed.index("test_b.py: 4 passed") < printed.index("test_a.py: 5 passed")  # the one that took longer
    text = (tmp_path / "geforce-rtx-9090.txt").read_text()
    assert text.index("test_a.py") < text.index("test_b.py")
    assert "\n9 passed, 1 failed, 2 skipped, in " in text
    assert re.search(r"test_a\.py +5 passed, 1 skipped  \(\d+ s\)\n", text)
    assert re.search(r"test_b\.py +4 passed, 1 failed, 1 skipped  \(\d+ s\)\n", text)
    assert re.search(r"NVIDIA GeForce RTX 9090, Python 3\.\d+\.\d+, torch 2\.", text)
    assert "make gpu-test PYTHON=python3" in text


def test_a_file_that_crashes_has_failed(tmp_path):
    (tmp_path / "test_crash.py").write_text("import os\nos._exit(3)\n")
    found = run_file(tmp_path / "test_crash.py")
    assert (found.passed, found.failed, found.skipped) == (0, 1, 0)


def test_files_that_use_a_gpu_are_all_among_those_to_run():
    run = set(files_to_run())
    assert all(file.is_file() for file in run)
    for file in (ROOT / "tests").rglob("test_*.py"):
        if re.search(r"skipif\(not torch\.cuda\.is_available", file.read_text(encoding="utf-8")):
            assert file in run, file


def test_a_record_without_failures():
    text = record([Outcome("tests/nn/test_layers.py", 16, 0, 0, 2.4)], "NVIDIA H200", 14, 3.0)
    assert "16 passed, none failed, none skipped, in 3 seconds" in text
    assert text.endswith("tests/nn/test_layers.py     16 passed  (2 s)\n")
    assert "Unfinished" not in text
    assert record_name("NVIDIA H200") == "h200.txt"


def test_a_record_of_a_run_that_was_cut_short_says_so():
    text = record([Outcome("tests/nn/test_layers.py", 16, 0, 0, 2.4)], "NVIDIA H200", 14, 3.0, left=7)
    assert "\nUnfinished: 7 files more were to run.\n" in text


def test_recorded_seconds_are_those_that_record_wrote(tmp_path):
    outcomes = [Outcome("tests/a/test_a.py", 16, 0, 0, 2.4), Outcome("tests/b/test_b.py", 4, 1, 3, 124.0)]
    (tmp_path / "h200.txt").write_text(record(outcomes, "NVIDIA H200", 14, 130.0, left=7))
    assert recorded_seconds(tmp_path / "h200.txt") == {"tests/a/test_a.py": 2, "tests/b/test_b.py": 124}


def test_recorded_seconds_of_an_older_record_or_of_none_are_unknown(tmp_path):
    old = "1 passed, none failed, none skipped. Each file in a process of its own, by\n\ntests/a/test_a.py  1 passed\n"
    (tmp_path / "h200.txt").write_text(old)
    assert recorded_seconds(tmp_path / "h200.txt") == {}
    assert recorded_seconds(tmp_path / "missing.txt") == {}
    for path in (ROOT / "results/gpu-tests").iterdir():
        assert all(file.startswith("tests/") for file in recorded_seconds(path))


def test_longest_first_by_seconds_after_unknown_files_by_size(tmp_path):
    files = [tmp_path / f"tests/test_{name}.py" for name in "abcd"]
    (tmp_path / "tests").mkdir()
    for file, size in zip(files, (3, 10, 1, 2), strict=True):
        file.write_text("#" * size)
    a, b, c, d = files
    assert longest_first(files, {}, tmp_path) == [b, a, d, c]
    seconds = {"tests/test_a.py": 5, "tests/test_b.py": 2, "tests/test_c.py": 40}
    assert longest_first(files, seconds, tmp_path) == [d, c, a, b]
