"""The scripts in examples/ run as they are, and are short."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples"
ALONE = [FOLDER / name for name in ("caps_in_a_cnn.py", "lightning_module.py")]
"""Those that need no data; the others have tests of their own."""
NEEDS = {"lightning_module.py": "lightning"}


@pytest.mark.parametrize("script", ALONE, ids=lambda path: path.name)
def test_an_example_runs(script, tmp_path):
    package = NEEDS.get(script.name)
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"the package {package} is not installed")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    percent = re.search(r"^accuracy .*: (\d+)%$", done.stdout, re.M)
    assert percent, done.stdout
    if script.name == "caps_in_a_cnn.py":
        assert int(percent[1]) >= 90


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.[ps]*")), ids=lambda path: path.name)
def test_an_example_is_short_and_listed(script):
    assert len(script.read_text(encoding="utf-8").splitlines()) < 40
    assert f"]({script.name})" in (FOLDER / "README.md").read_text(encoding="utf-8")
