"""The scripts in examples/ run as they are, and are short."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
LEARNED = {"caps_in_a_cnn.py": 90, "lightning_module.py": 60, "sets_of_points.py": 90}
"""The accuracy in percent that each reaches at least; the examples that need data have tests of their own."""


@pytest.mark.parametrize("script", [FOLDER / name for name in LEARNED], ids=lambda path: path.name)
def test_an_example_runs(script, tmp_path):
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    percent = re.search(r"^accuracy .*: (\d+)%$", done.stdout, re.M)
    assert percent, done.stdout
    assert int(percent[1]) >= LEARNED[script.name]


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.[ps]*")), ids=lambda path: path.name)
def test_an_example_is_short_and_listed(script):
    assert len(script.read_text(encoding="utf-8").splitlines()) < 40
    assert f"]({script.name})" in (FOLDER / "README.md").read_text(encoding="utf-8")
