import pytest
import torch

from emcaps.train.device import keep_freed_memory, pick_device


def test_pick_device_auto_takes_what_there_is():
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert pick_device("cpu").type == "cpu"


def test_pick_device_unknown_or_missing():
    with pytest.raises(ValueError, match="unknown device 'gpu': use auto, cpu, cuda"):
        pick_device("gpu")
    with pytest.raises(ValueError, match="there is no device 'cuda:99' to train on here"):
        pick_device("cuda:99")
    with pytest.raises(ValueError, match="there is no device 'meta' to train on here"):
        pick_device("meta")


def test_keep_freed_memory_may_be_called_twice():
    keep_freed_memory()
    keep_freed_memory()
