"""What tests of several commands need: options that make a small run, and a process of its own."""

import subprocess
import sys

TINY = [
    "--set",
    "data.crop=16",
    "--set",
    "network.conv1_types=4",
    "--set",
    "network.conv2_types=4",
    "--batch-size",
    "8",
]


def in_a_process(*arguments, **settings):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=120, **settings)
