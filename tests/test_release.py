"""`make release` refuses what is not committed. The rest of it needs environments of its own and runs by hand."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / ".ci/release"


@pytest.fixture
def copy(tmp_path):
    """The script in a folder of its own, which is no checkout."""
    (tmp_path / ".ci").mkdir()
    return shutil.copy(SCRIPT, tmp_path / ".ci/release")


def run(script):
    done = subprocess.run([script], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def test_a_tree_with_changes_is_not_released(copy):
    subprocess.run(["git", "init", "--quiet", copy.parents[1]], check=True, timeout=60)
    (copy.parents[1] / "stray.txt").touch()
    status, told = run(copy)
    assert status == 1
    assert "release: these files differ from the last commit" in told
    assert "?? stray.txt" in told


def test_a_folder_without_commits_is_not_released(copy, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(copy.parents[2]))
    status, told = run(copy)
    assert status == 1
    assert "release: this is no git checkout: a release is built from a commit" in told
