"""Exported networks: the files agree with PyTorch at any batch size, say what they are, and a wrong one is not kept."""

import importlib.util
import io
import json
import re
import subprocess
import sys

import pytest
import torch

import emcaps
from emcaps import export as exporting
from emcaps.config import RunConfig
from emcaps.export import check_onnx_packages, example_crops, export, largest_difference
from emcaps.files import METADATA
from emcaps.nn import build_network
from emcaps.train.checkpoint import save_weights

MISSING = [name for name in exporting.ONNX_PACKAGES if importlib.util.find_spec(name) is None]
ONNX = pytest.mark.skipif(bool(MISSING), reason=f"ONNX needs {', '.join(MISSING)}: pip install '.[onnx]'")

CONFIG = RunConfig().override(
    {
        "network.conv_channels": 4,
        "network.primary_types": 2,
        "network.conv1_types": 3,
        "network.conv2_types": 3,
        "data.crop": 16,
        "data.view": "stereo",
    }
)
CNN = RunConfig.from_dict({"network": {"kind": "cnn"}, "data": {"crop": 16}, "train": {"loss": "cross_entropy"}})


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return write_weights(tmp_path_factory.mktemp("weights") / "weights.safetensors", CONFIG)


@pytest.fixture(scope="module")
def written(weights):
    """What export returns for a .pt2 file and, where its packages are, an ONNX file."""
    onnx = None if MISSING else weights.with_suffix(".onnx")
    return {file.path.suffix: file for file in export(weights, onnx, weights.with_suffix(".pt2"))}


def write_weights(path, config):
    torch.manual_seed(0)
    save_weights(path, build_network(config.network, config.data.image_channels, config.data.crop), config, 7)
    return path


def test_a_loaded_network_can_be_saved_by_torch_export(weights):
    network = emcaps.load(weights)
    crops = example_crops(CONFIG, 5)
    batch = torch.export.Dim("batch")
    file = io.BytesIO()
    torch.export.save(torch.export.export(network, (crops[:3],), dynamic_shapes=({0: batch},)), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for size in (1, 5):
        found, wanted = loaded(crops[:size]), network(crops[:size])
        assert type(found) is emcaps.RoutingOutput
        assert all(map(torch.equal, found, wanted))


def check_metadata(text):
    found = json.loads(text)
    assert found["emcaps"] == emcaps.__version__
    assert found["step"] == 7
    assert found["input"] == {"name": "images", "dtype": "float32", "shape": ["batch", 2, 16, 16]}
    assert found["outputs"] == ["pose", "activation"]
    assert len(found["classes"]) == 5
    assert found["preparation"].items() >= {"view": "stereo", "crop": 16, "standardise": "image"}.items()
    assert found["network"]["conv1_types"] == 3


def test_pt2(weights, written):
    file = written[".pt2"]
    path = weights.with_suffix(".pt2")
    assert (file.path, file.size) == (path, path.stat().st_size)
    assert 0 <= file.difference <= 1e-5
    assert min(file.milliseconds, file.torch_milliseconds) > 0
    extra = {METADATA: ""}
    loaded = torch.export.load(path, extra_files=extra).module()
    check_metadata(extra[METADATA])
    crops = example_crops(CONFIG, 6)
    wanted = emcaps.load(weights, impl="reference")(crops)
    found = loaded(crops)
    assert list(found) == ["pose", "activation"]
    assert largest_difference(found, wanted._asdict()) <= 1e-5


def test_a_decoder_is_left_out(tmp_path, weights, written):
    path = write_weights(tmp_path / "weights.safetensors", CONFIG.override({"network.decoder": 8}))
    (drawing,) = export(path, None, tmp_path / "drawing.pt2")
    assert drawing.path.stat().st_size < written[".pt2"].path.stat().st_size + 1000


def test_a_pt2_file_needs_no_emcaps(written):
    code = """
import sys, torch
sys.modules["emcaps"] = None
print(torch.export.load(sys.argv[1]).module()(torch.zeros(4, 2, 16, 16))["activation"].shape)
"""
    command = [sys.executable, "-c", code, written[".pt2"].path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "torch.Size([4, 5])\n", done.stderr


def test_the_cnn_gives_logits(tmp_path):
    weights = write_weights(tmp_path / "cnn.safetensors", CNN)
    export(weights, pt2=tmp_path / "cnn.pt2")
    crops = example_crops(CNN, 2)
    found = torch.export.load(tmp_path / "cnn.pt2").module()(crops)
    assert largest_difference(found, {"logits": emcaps.load(weights)(crops)}) <= 1e-5


@ONNX
def test_onnx(weights, written):
    import onnxruntime

    path = weights.with_suffix(".onnx")
    assert 0 <= written[".onnx"].difference <= 1e-5
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    check_metadata(session.get_modelmeta().custom_metadata_map[METADATA])
    (images,) = session.get_inputs()
    assert (images.name, images.type, images.shape) == ("images", "tensor(float)", ["batch", 2, 16, 16])
    assert [output.name for output in session.get_outputs()] == ["pose", "activation"]
    crops = example_crops(CONFIG, 6)
    pose, activation = map(torch.from_numpy, session.run(None, {"images": crops.numpy()}))
    wanted = emcaps.load(weights, impl="reference")(crops)
    assert largest_difference({"pose": pose, "activation": activation}, wanted._asdict()) <= 1e-5
    assert str(exporting.__file__).encode() not in path.read_bytes()


@ONNX
def test_the_log_of_a_sigmoid_stays_finite_in_onnx(tmp_path):
    """A parent that is all but inactive has a very negative logit."""
    network = exporting.NamedOutputs(torch.nn.LogSigmoid()).eval()
    logits = torch.linspace(-200, 20, 111)[None]
    with torch.no_grad():
        program = torch.export.export(network, (logits.expand(3, -1),), dynamic_shapes=exporting.ANY_BATCH)
    exporting._write_onnx(tmp_path / "log.onnx", program, ["logits"], {})
    found = exporting._onnx_runner(tmp_path / "log.onnx")(logits)["logits"]
    torch.testing.assert_close(found, network(logits)["logits"], rtol=1e-6, atol=1e-6)


class ClassLayer(torch.nn.Module):
    """Three types of children at four positions, routed to two classes, by their activations (B, 2, 2, 3)."""

    def __init__(self):
        super().__init__()
        chance = torch.Generator().manual_seed(0)
        self.pose = torch.randn(2, 2, 3, 4, 4, generator=chance)
        self.weight = torch.randn(3, 2, 4, 4, generator=chance)

    def forward(self, activation):
        pose = self.pose.expand(activation.shape[0], *self.pose.shape)
        return emcaps.class_routing(pose, activation, self.weight, torch.zeros(2), torch.zeros(2), impl="reference")


@ONNX
def test_a_parent_with_little_data_or_none_is_the_same_in_onnx(tmp_path):
    """Its mean depends on routing's EPSILON of 1e-9, which the exporter's optimiser takes for zero."""
    network = exporting.NamedOutputs(ClassLayer()).eval()
    activation = torch.tensor([0, 1e-9, 1e-6, 0.5])[:, None, None, None].expand(-1, 2, 2, 3)
    with torch.no_grad():
        program = torch.export.export(network, (activation,), dynamic_shapes=exporting.ANY_BATCH)
    exporting._write_onnx(tmp_path / "layer.onnx", program, ["pose", "activation"], {})
    found, wanted = exporting._onnx_runner(tmp_path / "layer.onnx")(activation), network(activation)
    assert wanted["pose"][0].abs().max() == 0
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@ONNX
def test_the_largest_network_of_the_package_as_onnx(tmp_path):
    """Some of its capsules have so little data that it is refused if any step of the export is inexact."""
    (file,) = export("full-stereo", onnx=tmp_path / "full.onnx")
    assert 0 < file.difference <= 1e-5
    assert file.size == (tmp_path / "full.onnx").stat().st_size


@ONNX
def test_a_network_that_rounds_more_than_others_is_held_to_its_own_rounding(tmp_path, monkeypatch):
    """The poses of small-mono reach 50, and its routing is sharp: PyTorch's are 2e-5 from those of float64."""
    (file,) = export("small-mono", onnx=tmp_path / "mono.onnx")
    assert 1e-5 < file.difference < 4e-5
    monkeypatch.setattr(exporting, "OF_ROUNDING", 0)
    with pytest.raises(
        ValueError, match=r"mono\.onnx would differ from PyTorch by \S+ for a batch of \d, more than 1e-05"
    ):
        export("small-mono", onnx=tmp_path / "mono.onnx")


@pytest.mark.parametrize("version", ["2.6.0", "2.7.1+cu118"])
def test_an_old_torch_is_refused(monkeypatch, tmp_path, version):
    monkeypatch.setattr(torch, "__version__", version)
    with pytest.raises(ValueError, match=rf"export needs torch 2\.8 or newer, not {re.escape(version)}: pip install"):
        export("small-mono", pt2=tmp_path / "network.pt2")


def test_packages_that_onnx_files_need_are_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else "here")
    with pytest.raises(ValueError, match=r"ONNX files need onnxruntime, .*: pip install onnxruntime$"):
        check_onnx_packages()


def test_a_file_that_differs_from_the_network_is_not_kept(tmp_path, monkeypatch):
    weights = write_weights(tmp_path / "cnn.safetensors", CNN)  # it is exported sooner than capsules
    path = tmp_path / "files/network.pt2"
    path.parent.mkdir()
    path.write_text("what was there before")
    right = exporting._pt2_runner

    def wrong(file):
        run = right(file)
        return lambda images: {name: value + 1e-3 * (len(images) > 1) for name, value in run(images).items()}

    monkeypatch.setattr(exporting, "_pt2_runner", wrong)
    with pytest.raises(ValueError, match=r"network\.pt2 would differ from PyTorch by \S+ for a batch of 3, more than"):
        export(weights, pt2=path)
    assert path.read_text() == "what was there before"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("found", "difference"),
    [
        ({"a": torch.ones(2), "b": torch.tensor([10.0, 0.0])}, 0),
        ({"a": torch.ones(2) - 0.5, "b": torch.tensor([10.0, 0.0])}, 0.5),
        ({"a": torch.ones(2), "b": torch.tensor([15.0, 0.0])}, 0.5),
        ({"a": torch.ones(2), "b": torch.tensor([float("nan"), 0.0])}, float("nan")),
        ({"a": torch.ones(1), "b": torch.tensor([10.0, 0.0])}, float("inf")),
        ({"a": torch.ones(2)}, float("inf")),
    ],
    ids=["alike", "absolute", "a share of the largest", "NaN", "another shape", "an output is missing"],
)
def test_largest_difference(found, difference):
    wanted = {"a": torch.ones(2), "b": torch.tensor([10.0, 0.0])}
    assert largest_difference(found, wanted) == pytest.approx(difference, nan_ok=True)
