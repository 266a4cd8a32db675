"""The comparison with another implementation, of which a small stand-in takes the place."""

import json
import subprocess
import sys

import pytest
import torch

from emcaps.bench import peers
from emcaps.config import preset

STAND_IN = """
import torch
from torch import nn

class Network(nn.Module):
    def __init__(self, types):
        super().__init__()
        self.constant = torch.cuda.FloatTensor(1).fill_(2.0)
        self.line = nn.Linear(1024, types["E"])

    def forward(self, images):
        return (self.constant * self.line(images.flatten(1))).sigmoid() + torch.cuda.FloatTensor(1).fill_(0.0)

def capsules(iters, **types):
    assert types == {"A": 64, "B": 8, "C": 16, "D": 16, "E": 5}, types
    return Network(types)
"""


@pytest.fixture
def clone(tmp_path):
    folder = tmp_path / "clone"
    (folder / "model").mkdir(parents=True)
    (folder / peers.MODEL).write_text(STAND_IN, encoding="utf-8")
    return folder


def test_every_implementation_is_timed(clone, monkeypatch, capsys):
    monkeypatch.setattr(peers, "ITERATIONS", (2,))
    found = peers.compare(clone, torch.device("cpu"), batch=1, seconds=0.01)
    assert [(row["network"], row["iterations"], row["implementation"]) for row in found["rows"]] == [
        ("small", 2, "peer"),
        ("small", 2, "emcaps"),
    ]
    assert all(0 < row["p20_ms"] <= row["median_ms"] <= row["p80_ms"] for row in found["rows"])
    assert found["batch"] == 1
    assert found["environment"]["device"].startswith("cpu")
    assert "small, 2 iterations, peer: " in capsys.readouterr().out


def test_torch_is_left_as_it_was(clone):
    before = torch.cuda.FloatTensor
    work = peers.makers(peers.load_model(clone), preset("small").network, torch.device("cpu"))["peer"](1)
    gradients = work()
    assert [tuple(gradient.shape) for gradient in gradients] == [(5, 1024), (5,)]
    assert torch.cuda.FloatTensor is before


def test_a_folder_without_the_model_ends_in_one_line(tmp_path):
    command = [sys.executable, "-m", "emcaps.bench.peers", str(tmp_path), "--out", str(tmp_path / "out.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"lacks {peers.MODEL}: give it a clone of {peers.PEER}" in " ".join(done.stderr.split())
    assert not (tmp_path / "out.json").exists()


def test_the_record_is_json(clone, tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "ITERATIONS", (1,))
    monkeypatch.setattr(sys, "argv", ["peers", str(clone), "--device", "cpu", "--batch", "1", "--seconds", "0.01"])
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--out", str(tmp_path / "out.json")])
    peers.main()
    assert json.loads((tmp_path / "out.json").read_bytes())["peer"] == peers.PEER
