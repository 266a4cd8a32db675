"""examples/own_pictures.sh, run as a user would."""

import os
import subprocess
import sys
from pathlib import Path

from own_images import write_pictures

SCRIPT = Path(__file__).parent.parent.parent / "examples" / "own_pictures.sh"


def test_the_example_of_own_pictures_runs(tmp_path):
    pictures = write_pictures(tmp_path / "pictures")
    command = tmp_path / "bin" / "emcaps"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m emcaps "$@"\n')
    command.chmod(0o755)
    environment = os.environ | {
        "EMCAPS_DATA": str(tmp_path / "data"),
        "PATH": f"{command.parent}:{os.environ['PATH']}",
    }
    arguments = [str(SCRIPT), str(pictures), "2", "tiny"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=240, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "bee/001.jpg" in done.stdout
    assert (tmp_path / "runs" / "own-pictures" / "weights.safetensors").exists()
    assert len(SCRIPT.read_text().splitlines()) < 40


def test_without_pictures_it_says_how_to_use_it():
    done = subprocess.run([str(SCRIPT)], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(f"usage: {SCRIPT} PICTURES [STEPS] [PRESET]; PICTURES has a subfolder")
