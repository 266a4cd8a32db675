"""`emcaps export`, as far as its command goes; tests/test_export.py has the rest."""

import pytest
import torch
from commands import TINY


@pytest.mark.usefixtures("data")
def test_a_run_is_exported_and_shown(emcaps):
    status, _, err = emcaps("train", "tiny", *TINY, "--steps", 1, "--run", "run")
    assert status == 0, err
    status, out, err = emcaps("export", "run", "--pt2", "files/[a].pt2")
    assert status == 0, err
    assert "files/[a].pt2" in out
    assert torch.export.load("files/[a].pt2").module()(torch.zeros(2, 1, 16, 16))["activation"].shape == (2, 5)


def test_a_file_must_be_named(emcaps):
    status, _, err = emcaps("export", "small-mono")
    assert (status, err) == (1, "emcaps: there is no file to write: name one by --onnx FILE, --pt2 FILE or both\n")
