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


def test_a_file_of_another_kind_is_not_replaced(emcaps, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    for option, kind in (("--onnx", "ONNX file"), ("--pt2", "file of torch.export")):
        message = f"emcaps: config.json is there and is no {kind}, so it is not replaced: name another file\n"
        assert emcaps("export", "small-mono", option, "config.json")[::2] == (1, message)
    assert (tmp_path / "config.json").read_text() == "{}"
    status, _, err = emcaps("export", "small-mono", "--onnx", "one.bin", "--pt2", "one.bin")
    assert (status, err) == (1, "emcaps: --onnx and --pt2 name the same file, one.bin: name two files\n")
