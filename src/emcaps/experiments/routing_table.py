"""How sharp routing is in a trained network, layer by layer and iteration by iteration: `emcaps experiment inside`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from emcaps.analysis.sharpness import fixed_crops, measure
from emcaps.data.splits import load_split
from emcaps.data.tensors import to_tensors
from emcaps.files import write_json
from emcaps.nn import MatrixCapsNet
from emcaps.report.tables import plain_table
from emcaps.train import load_network
from emcaps.train.device import start_work
from emcaps.train.schedules import margin_of
from emcaps.weights import find_weights


def show_routing(name: str, console: Console, *, json: Path | None, device: str, data_folder: Path | None) -> None:
    """Show the routing of the network with this name, run folder or file; write the measurements to `json`, too."""
    with console.status("measuring"):
        found = measure_trained(name, device=device, data_folder=data_folder)
    title = f"{name}, step {found['step']}: routing of {found['images']} training images"
    console.print(routing_table(found, title))
    if json is not None:
        write_json(json, found)


def measure_trained(name: str, *, device: str = "auto", data_folder: Path | None = None) -> dict[str, Any]:
    """The measurements of `sharpness.measure`, with the step and the number of images."""
    place = start_work(device)
    network, config, step = load_network(find_weights(name), place)
    if not isinstance(network, MatrixCapsNet):
        raise ValueError(f"{name} is a {config.network.kind}, which does not route: name a capsule network")
    images, labels = to_tensors(load_split(config.data, data_folder).train, config.data.view, place)
    crops, categories = fixed_crops(images, labels, config.data)
    found = measure(network.eval(), crops, categories, margin_of(config.train, step))
    return {"step": step, "images": len(crops)} | found


def routing_table(found: Mapping[str, Any], title: str) -> Table:
    table = plain_table(title)
    for column in ("layer", "it", "effective\nchildren", "one\nchild, %", "entropy", "useful\ninputs, %", "positions"):
        table.add_column(column, justify="left" if column == "layer" else "right")
    for layer, iterations in found["layers"].items():
        for number, row in enumerate(iterations, start=1):
            table.add_row(layer if number == 1 else "", str(number), *routing_cells(row))
    table.caption = (
        "effective children: (Σ r)² / Σ r² over a parent's children, median over parents; one child: parents with over "
        "90 % of their data from one child; entropy: how evenly children are shared, 0 to 1; useful inputs: those of "
        "the logistic function from -5 to 5; positions: the effective number of positions that share a child"
    )
    table.caption_justify = "left"
    return table


def routing_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """All columns of one layer and iteration."""
    positions = f"{row['positions']:.2f}" if "positions" in row else "-"
    return (*sharpness_cells(row), f"{100 * row['logit_useful']:.0f}", positions)


def sharpness_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Effective children, parents with one child and entropy."""
    return f"{row['effective_children']:.1f}", f"{100 * row['lone_parents']:.1f}", f"{row['entropy']:.2f}"
