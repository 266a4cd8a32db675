import platform
import subprocess
import sys

import pytest
import torch

from emcaps.train.device import pick_device


def test_pick_device_auto_takes_what_there_is():
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert pick_device("cpu").type == "cpu"


def test_pick_device_unknown_or_missing():
    with pytest.raises(ValueError, match="unknown device 'gpu': use auto, cpu, cuda"):
        pick_device("gpu")
    with pytest.raises(ValueError, match=r"the device 'cuda:99' cannot be used here .*: use auto or cpu"):
        pick_device("cuda:99")
    with pytest.raises(ValueError, match="the device 'meta' cannot be used here"):
        pick_device("meta")


SCRIPT = """
import sys, torch
from emcaps.train.device import pick_device, start_work
(start_work if sys.argv[1] == "kept" else pick_device)("cpu")
large = torch.ones(50_000_000)
del large
print(int(open("/proc/self/statm").read().split()[1]) * 4096 // 1_000_000)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to keep memory")
def test_start_work_keeps_freed_memory():
    """200 MB that were freed still count as the process's own, and do not without it."""
    resident = {
        how: int(subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, check=True).stdout)
        for how in ("kept", "given back")
    }
    assert resident["kept"] > resident["given back"] + 150
