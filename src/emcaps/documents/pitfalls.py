"""The page on the three pitfalls: what each mistake costs, for the small network and for the tiny one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from emcaps.analysis.sharpness import LAYERS, QUANTILES, average
from emcaps.documents.recorded import PITFALLS, pitfalls_runs
from emcaps.experiments.pitfalls import markdown_accuracies, markdown_ratios, mean_data
from emcaps.experiments.published import IMPLEMENTATIONS
from emcaps.report.markdown import markdown_link, markdown_table, two_digits

SCALINGS = {"scaled": "correct-it2", "not scaled": "no-scaling-it2", "not scaled, λ 0.01": "low-lambda-it2"}
"""Columns of the table of logistic inputs, and the variants that they show."""
TYPES = 16
"""The number of parent types in those variants."""


def published_implementations(_results: str) -> str:
    header = ("implementation", "floor", "scaling", "competition", "accuracy, %")
    rows = [
        (markdown_link(one.name, one.code.link), one.floor, one.scaling, one.competition, str(one.figure.accuracy))
        for one in IMPLEMENTATIONS
    ]
    return markdown_table(header, rows, left=(0, 1, 2, 3))


def accuracies(network: str, results: str) -> str:
    return markdown_accuracies(pitfalls_runs(network), f"{results}/{PITFALLS[network]}/")


def types_of_parent(network: str, results: str) -> str:
    return markdown_ratios(pitfalls_runs(network), network, f"{results}/{PITFALLS[network]}/")


def logistic_inputs(network: str, _results: str) -> str:
    """From the 5th to the 95th percentile, at the start of training, in the last iteration."""
    rows = []
    for layer in LAYERS:
        cells = []
        for variant in SCALINGS.values():
            start = average([run.routing[0]["layers"][layer][-1] for run in pitfalls_runs(network)[variant]])
            found = dict(zip(QUANTILES, start["logit_quantiles"], strict=True))
            cells.append(f"{two_digits(found[0.05])} to {two_digits(found[0.95])}")
        rows.append((layer, f"{mean_data(TYPES, network)[layer]:.2f}", *cells))
    return markdown_table(("layer", "children per parent", *SCALINGS), rows)


BLOCKS: dict[str, Callable[[str], str]] = {
    "implementations": published_implementations,
    "small": partial(accuracies, "small"),
    "small-types": partial(types_of_parent, "small"),
    "small-logits": partial(logistic_inputs, "small"),
    "tiny": partial(accuracies, "tiny"),
    "tiny-types": partial(types_of_parent, "tiny"),
}
