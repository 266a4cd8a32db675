"""The examples run as they stand, in a process of their own, on data that the tests make."""

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np

from emcaps.data.builtin import originals_folder

EXAMPLES = Path(__file__).parent.parent.parent / "examples"

SEGMENTS = ("abcdef", "bc", "abdeg", "abcdg", "bcfg", "acdfg", "acdefg", "abc", "abcdefg", "abcdfg")
"""The bars of a seven-segment display that show each digit: a at the top, b to f clockwise, g in the middle."""
BARS = {
    "a": np.s_[4:6, 8:20],
    "b": np.s_[4:14, 18:20],
    "c": np.s_[14:24, 18:20],
    "d": np.s_[22:24, 8:20],
    "e": np.s_[14:24, 8:10],
    "f": np.s_[4:14, 8:10],
    "g": np.s_[13:15, 8:20],
}


def digits(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Digits uint8 (count, 28, 28) of a seven-segment display, shifted by up to two pixels, and their labels."""
    random = np.random.default_rng(seed)
    labels = random.integers(10, size=count).astype(np.uint8)
    images = np.zeros((count, 28, 28), np.uint8)
    for image, label in zip(images, labels, strict=True):
        for name in SEGMENTS[label]:
            image[BARS[name]] = random.integers(150, 256)
        image[:] = np.roll(image, random.integers(-2, 3, size=2), axis=(0, 1))
    return images, labels


def write_mnist(folder: Path) -> None:
    """Write digits in the four files in which MNIST is published."""
    for part, count, seed in (("train", 2000, 0), ("t10k", 300, 1)):
        images, labels = digits(count, seed)
        head = np.array([0x803, count, 28, 28], ">i4").tobytes()
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + images.tobytes()))
        head = np.array([0x801, count], ">i4").tobytes()
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(head + labels.tobytes()))


def test_the_plain_loop_learns_digits_from_raw_images(tmp_path):
    write_mnist(tmp_path)
    command = [sys.executable, str(EXAMPLES / "mnist_loop.py"), str(tmp_path), "40"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    accuracy = float(done.stdout.split("accuracy after 40 steps: ")[1])
    assert accuracy > 0.6, done.stdout  # chance is 0.1, and so is what a saturated class capsule gives


def test_without_a_folder_it_says_where_the_files_come_from(monkeypatch):
    done = subprocess.run([sys.executable, str(EXAMPLES / "mnist_loop.py")], capture_output=True, text=True)
    assert done.returncode == 1
    assert "python examples/mnist_loop.py FOLDER" in done.stderr
    assert "Traceback" not in done.stderr
    monkeypatch.delenv("EMCAPS_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert str(originals_folder("mnist")).replace(str(Path.home()), "~") in done.stderr


def test_every_example_is_short():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < 40, path
