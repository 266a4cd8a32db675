"""Choosing the device to work on, and making memory on a CPU quick to get again."""

from __future__ import annotations

import ctypes
import sys

import torch


def start_work(name: str = "auto") -> torch.device:
    """The device of that name, ready for heavy work."""
    device = pick_device(name)
    if device.type == "cpu":
        keep_freed_memory()
    return device


def pick_device(name: str = "auto") -> torch.device:
    """ "auto" takes a GPU if there is one; a device that is named but missing is an error."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}: use auto, cpu, cuda or cuda:N") from None
    try:
        if device.type == "meta" or (device.type == "cpu" and device.index):
            raise RuntimeError("there is none to work on")
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"the device {name!r} cannot be used here ({reason}): use auto or cpu") from None
    return device


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for reuse, in the whole process.

    Routing on a CPU makes and drops large temporaries; by default each goes back to the system and is mapped and zeroed
    anew, which can take longer than the arithmetic. Elsewhere than on glibc this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    trim_threshold, mmap_threshold, most = -1, -3, 2**31 - 1
    try:
        libc = ctypes.CDLL("libc.so.6")
        if libc.mallopt(mmap_threshold, 2**30):  # some versions of glibc take no more than 32 MB
            libc.mallopt(trim_threshold, most)
    except (OSError, AttributeError):
        return
