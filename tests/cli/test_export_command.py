"""`emcaps export`, as far as its command goes; tests/test_export.py has the rest."""

import numpy as np
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
    assert emcaps("export", "run", "--pt2", "files/[a].pt2")[0] == 0, "an exported file is replaced"
    assert torch.export.load("files/[a].pt2").module()(torch.zeros(2, 1, 16, 16))["activation"].shape == (2, 5)


def test_a_file_must_be_named(emcaps):
    status, _, err = emcaps("export", "small-mono")
    assert (status, err) == (1, "emcaps: there is no file to write: name one by --onnx FILE, --pt2 FILE or both\n")


def test_a_file_of_another_kind_is_not_replaced(emcaps, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    np.savez(tmp_path / "images.npz", images=np.zeros((2, 1, 8, 8), np.uint8))  # a zip, as files of torch.export are
    (tmp_path / "weights.safetensors").write_bytes(b"\x08" + bytes(99))  # the first byte of every ONNX file
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for option, kind, name in (
        ("--onnx", "ONNX file", "config.json"),
        ("--onnx", "ONNX file", "weights.safetensors"),
        ("--pt2", "file of torch.export", "config.json"),
        ("--pt2", "file of torch.export", "images.npz"),
    ):
        message = f"emcaps: {name} is there and is no {kind} by emcaps, so it is not replaced: name another file\n"
        assert emcaps("export", "small-mono", option, name)[::2] == (1, message)
    assert all(path.read_bytes() == content for path, content in before.items())
    status, _, err = emcaps("export", "small-mono", "--onnx", "one.bin", "--pt2", "one.bin")
    assert (status, err) == (1, "emcaps: --onnx and --pt2 name the same file, one.bin: name two files\n")
