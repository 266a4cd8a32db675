"""Trained networks as files for other programs: ONNX, and PyTorch's own format for exported programs (.pt2).

A file takes crops of any batch size, prepared as for the network itself, and runs without emcaps. It holds what its
user must know as JSON: shapes, class names and how images are prepared. It is compared with the network on images at
two batch sizes before it takes its place on disk.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import io
import json
import logging
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from emcaps.config import RunConfig
from emcaps.data.crops import evaluation_crops
from emcaps.data.prepared import SIDE, class_names
from emcaps.files import METADATA, atomic_write
from emcaps.nn.network import remove_decoder
from emcaps.train.checkpoint import load_network
from emcaps.version import __version__
from emcaps.weights import find_weights

TOLERANCE = 1e-5
"""How far an output may be from PyTorch's, as a share of its largest value or of 1, whichever is more."""
OF_ROUNDING = 2
"""How many times PyTorch's own distance from float64 that may be, where this is more."""
CHECKED_BATCHES = (1, 3)
INPUT = "images"
ANY_BATCH = ({0: torch.export.Dim("batch")},)
OLDEST_TORCH = (2, 8)
ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
PREPARATION = ("view", "channels", "size", "fit", "crop", "standardise")

Outputs = dict[str, Tensor]
Run = Callable[[Tensor], Outputs]


class Exported(NamedTuple):
    """One file that was written and checked."""

    path: Path
    size: int
    """In bytes."""
    difference: float
    """The largest difference from PyTorch, measured as TOLERANCE is."""
    milliseconds: float
    """Of one image, in a batch of 3, on this machine's CPU."""
    torch_milliseconds: float
    """The same by the network in PyTorch, with the implementation that is exported."""


class NamedOutputs(nn.Module):
    """A network that returns its outputs by name, in a plain dict, so that a reader of the file needs no emcaps."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Outputs:
        output = self.network(images)
        return {"logits": output} if isinstance(output, Tensor) else dict(output._asdict())


def export(name: str | Path, onnx: Path | None = None, pt2: Path | None = None) -> list[Exported]:
    """Write a trained network as ONNX, as .pt2 or as both; a file that differs from the network is not kept.

    `name` is what `emcaps.load` takes. The files hold the reference implementation, for the CPU, in float32.
    """
    check_torch()
    if onnx is not None:
        check_onnx_packages()
    weights = find_weights(name)
    loaded, config, step = load_network(weights, "cpu", "reference")
    config = remove_decoder(loaded, config)
    network = NamedOutputs(loaded).eval()
    images = example_crops(config, max(CHECKED_BATCHES))
    with torch.no_grad():
        program = torch.export.export(network, (images,), dynamic_shapes=ANY_BATCH)
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # paths on the machine that exports, which nobody else needs
        names = list(network(images))
        metadata = describe(config, step, images, names)
        written = []
        if pt2 is not None:
            with atomic_write(pt2) as temporary:
                temporary.write_bytes(_as_pt2(program, metadata))
                written.append(_checked(pt2, temporary, _pt2_runner(temporary), network, images))
        if onnx is not None:
            with atomic_write(onnx) as temporary:
                _write_onnx(temporary, program, names, metadata)
                written.append(_checked(onnx, temporary, _onnx_runner(temporary), network, images))
    return written


def check_torch() -> None:
    """Raise if this torch is too old: torch.export of 2.5 and 2.6 cannot follow routing for any size of batch."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise ValueError(f"export needs torch {oldest} or newer, not {torch.__version__}: pip install --upgrade torch")


def check_onnx_packages() -> None:
    missing = [package for package in ONNX_PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise ValueError(f"ONNX files need {', '.join(missing)}, not installed here: pip install {' '.join(missing)}")


def describe(config: RunConfig, step: int, images: Tensor, outputs: list[str]) -> dict[str, Any]:
    """What the user of a file must know about it."""
    data = dataclasses.asdict(config.data)
    return {
        "emcaps": __version__,
        "step": step,
        "input": {"name": INPUT, "dtype": "float32", "shape": ["batch", *images.shape[1:]]},
        "outputs": outputs,
        "classes": list(class_names(config.data)),
        "preparation": {key: data[key] for key in PREPARATION if key in data},
        "network": dataclasses.asdict(config.network),
    }


def example_crops(config: RunConfig, count: int) -> Tensor:
    """Crops of smooth shapes with a little noise, prepared as the network reads them: float32 (B, C, crop, crop)."""
    data = config.data
    side = max(data.size or SIDE, data.crop)
    chance = torch.Generator().manual_seed(0)
    shapes = torch.rand(count, data.image_channels, 6, 6, generator=chance)
    grey = 30 + 190 * nn.functional.interpolate(shapes, size=(side, side), mode="bicubic").clamp(0, 1)
    images = (grey + 8 * torch.rand(grey.shape, generator=chance)).to(torch.uint8)
    return evaluation_crops(images, data.crop, 1, data.standardise)[:, 0]


def largest_difference(found: Outputs, wanted: Outputs) -> float:
    """The largest difference of any output, as a share of that output's largest value or of 1, whichever is more."""
    shares = []
    for name, value in wanted.items():
        if name not in found or found[name].shape != value.shape:
            return math.inf
        shares.append((found[name] - value).abs().max() / value.abs().max().clamp_min(1))
    return torch.stack(shares).max().item()  # NaN if any is


def _checked(path: Path, temporary: Path, run: Run, network: nn.Module, images: Tensor) -> Exported:
    """Compare and time a file that is written but not yet in its place; a ValueError keeps it from getting there."""
    difference = 0.0
    exact = copy.deepcopy(network).double()
    for size in CHECKED_BATCHES:
        wanted = network(images[:size])
        found = largest_difference(run(images[:size]), wanted)
        # A network that routes sharply rounds more than others.
        most = max(TOLERANCE, OF_ROUNDING * largest_difference(wanted, exact(images[:size].double())))
        if not found <= most:  # nor if it is NaN
            raise ValueError(
                f"{path} would differ from PyTorch by {found:.1e} for a batch of {size}, more than {most:.0e}, so "
                "it was not written: use the other format, or other versions of torch, onnxscript and onnxruntime"
            )
        difference = max(difference, found)
    milliseconds, torch_milliseconds = (_time(work, images) for work in (run, network))
    return Exported(path, temporary.stat().st_size, difference, milliseconds, torch_milliseconds)


def _time(work: Run, images: Tensor) -> float:
    """Milliseconds of one image: the median of five runs, which come after those of the check."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        work(images)
        times.append(1000 * (time.perf_counter() - start) / len(images))
    return statistics.median(times)


def _as_pt2(program: torch.export.ExportedProgram, metadata: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={METADATA: json.dumps(metadata, indent=2)})
    return buffer.getvalue()


def _pt2_runner(path: Path) -> Run:
    module: Run = torch.export.load(io.BytesIO(path.read_bytes())).module()
    return module


def _write_onnx(
    path: Path, program: torch.export.ExportedProgram, outputs: list[str], metadata: dict[str, Any]
) -> None:
    with _quietly():
        made = torch.onnx.export(
            program.run_decompositions({torch.ops.aten.log_sigmoid.default: _log_sigmoid}),
            dynamo=True,
            input_names=[INPUT],
            output_names=outputs,
            dynamic_shapes=ANY_BATCH,  # the program has them; this brings the dim's name into the file
            verbose=False,
            optimize=False,
        )
    assert made is not None
    _simplify(made.model)
    for node in made.model.graph.all_nodes():
        node.metadata_props.clear()  # where in emcaps and torch each node comes from: most of the file otherwise
    made.model.metadata_props[METADATA] = json.dumps(metadata, indent=2)
    made.save(path)


def _simplify(model: Any) -> None:
    """Compute once what is constant. onnxruntime does the rest when it reads the file.

    The exporter's own optimiser also takes a constant below 1e-8 for zero (onnxscript's rule add_0), and so drops the
    EPSILON of routing: the mean of a parent with little data shifts, and that of a parent without data is NaN.
    """
    from onnxscript import optimizer

    optimizer.inline(model)
    optimizer.fold_constants(model)
    optimizer.remove_unused_nodes(model)


def _log_sigmoid(logit: Tensor) -> Tensor:
    """The logarithm of the sigmoid, finite for every logit. torch's own ONNX form, Log(Sigmoid), gives -inf at -100."""
    return logit.clamp(max=0) - (1 + (-logit.abs()).exp()).log()


def _onnx_runner(path: Path) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(images: Tensor) -> Outputs:
        values = session.run(names, {INPUT: images.numpy()})
        return {name: torch.from_numpy(value) for name, value in zip(names, values, strict=True)}

    return run


@contextmanager
def _quietly() -> Iterator[None]:
    """Keep back what the exporter says about packages that it does not need here, and about its own old calls."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
