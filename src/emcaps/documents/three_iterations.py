"""The page on three iterations: how the variants learn, what their gradients and their routing look like, and what
comes of it in longer runs of the small network."""

from __future__ import annotations

import statistics

from emcaps.analysis.sharpness import LAYERS, average
from emcaps.documents.recorded import choices_records, inside_network, iterations_runs, table2_records
from emcaps.experiments.choices import FOLDS, row_name
from emcaps.experiments.iterations import ROUTED
from emcaps.experiments.records import mean_and_spread, spread
from emcaps.experiments.routing_table import routing_cells, sharpness_cells
from emcaps.report.markdown import markdown_link, markdown_table, two_digits

SETTINGS = {
    "it1": "1 iteration",
    "it2": "2 iterations",
    "it3": "3 iterations",
    "it3-soft": "3, `pose_scale` 0.5, `variance_floor` 1, `betas` half_active",
    "it2-soft": "2, the same settings",
    "it3-floor": "3, `variance_floor` 1 alone",
    "it3-scale": "3, `pose_scale` 0.5 alone",
    "it3-betas": "3, `betas` half_active alone",
    "it3-scale-floor": "3, `pose_scale` 0.5 and `variance_floor` 1",
    "it3-slow": "3, learning rate 1e-3 instead of 3e-3",
    "it2-fast-betas": "2, `beta_rate` 10",
    "it3-fast-betas": "3, `beta_rate` 10",
    "it3-soft-fast-betas": "3, soft and `beta_rate` 10",
    "it3-soft-sharp-class": "3, soft, `beta_rate` 10 and `class_scale` 4",
}
"""Each variant in words."""
AT_START = ("it1", "it2", "it3", "it3-soft")
LONGER: dict[str, tuple[str | None, str]] = {
    "unchanged": ("crop", "it3"),
    "`beta_rate` 10": ("beta-10", "it3-beta-10"),
    "`beta_rate` 30": ("beta-30", "it3-beta-30"),
    "soft, `beta_rate` 10": (None, "it3-soft-beta-10"),
    "soft, `beta_rate` 30": (None, "it3-soft-beta-30"),
    "soft, `class_scale` 4, `beta_rate` 10": (None, "it3-class-4-beta-10"),
    "soft, `class_scale` 4, `beta_rate` 30": (None, "it3-class-4-beta-30"),
    "spliced images; 2 iterations: `beta_rate` 30; 3 iterations: soft, `beta_rate` 10": (
        "crop-splice",
        "it3-crop-splice",
    ),
}
"""Settings in words, and the variants of choices.py that have them, with 2 and with 3 iterations."""
IN_FULL = (("best", 1), ("best", 2), ("best", 3), ("faithful", 2), ("faithful", 3))
"""Recipes and iterations of Table 2."""
NOT_RUN = "not run"

ROUTING_COLUMNS = ("layer", "iteration", "effective children", "parents with one child, %", "entropy")


def variants(results: str) -> str:
    """Accuracies, and the gradient over training, as means and spreads over seeds."""
    rows = []
    for variant, runs in iterations_runs().items():
        columns = (
            spread([run.training_accuracy for run in runs], 1),
            spread([run.accuracy for run in runs], 1),
            spread([run.gradient_norm for run in runs], 2),
            spread([run.gradient_cosine for run in runs], 2),
        )
        rows.append((_variant(variant, results), SETTINGS[variant], *columns))
    found = ("training accuracy, %", "held-out accuracy, %", "gradient norm", "gradient cosine")
    return markdown_table(("variant", "iterations and settings", *found), rows, left=(0, 1))


def gradient_at_start(results: str) -> str:
    rows = []
    for variant in AT_START:
        start = [run.routing[0] for run in iterations_runs()[variant]]
        cells = (spread([found[key] for found in start], 2) for key in ("gradient_norm", "gradient_cosine"))
        rows.append((_variant(variant, results), *cells))
    return markdown_table(("variant", "gradient norm at step 0", "gradient cosine at step 0"), rows)


def routing_at_end(results: str) -> str:
    """Means over seeds after the last step; the first iteration's assignments are even and constant."""
    rows = []
    for variant in ROUTED:
        layers = average([run.routing[-1]["layers"] for run in iterations_runs()[variant]])
        for layer in LAYERS:
            for number, found in list(enumerate(layers[layer], start=1))[1:]:
                rows.append(
                    (
                        _variant(variant, results),
                        layer,
                        str(number),
                        *sharpness_cells(found),
                        two_digits(found["variance"]),
                        f"{found['logit_mean']:.1f}, {found['logit_deviation']:.1f}",
                        two_digits(found["assignment_gradient"]),
                    )
                )
    more = ("variance", "logit, mean and standard deviation", "gradient by assignments")
    return markdown_table(("variant", *ROUTING_COLUMNS, *more), rows, left=(0, 1))


def folds(results: str) -> str:
    """The small network on held-out training instances, with 2 and with 3 iterations."""
    rows = [
        (words, *(_by_fold(variant, results) if variant else NOT_RUN for variant in both))
        for words, both in LONGER.items()
    ]
    titles = (f"{count} iterations: {', '.join(f'fold {fold}' for fold in FOLDS['stereo'])}" for count in (2, 3))
    return markdown_table(("settings", *titles), rows)


def _by_fold(variant: str, results: str) -> str:
    cells = []
    for row in (row_name("stereo", variant, fold) for fold in FOLDS["stereo"]):
        accuracy = statistics.fmean(record.accuracy for record in choices_records()[row])
        cells.append(markdown_link(f"{accuracy:.1f}", f"{results}/choices/{row}"))
    return ", ".join(cells)


def trained_in_full(results: str) -> str:
    rows = []
    for view in ("stereo", "mono"):
        names = [f"{recipe}-{view}-it{iterations}" for recipe, iterations in IN_FULL]
        rows.append((view, *(_row_of_table2(name, results) for name in names)))
    header = [f"{recipe}, {count} iteration{'s' if count > 1 else ''}, %" for recipe, count in IN_FULL]
    return markdown_table(("view", *header), rows)


def _row_of_table2(name: str, results: str) -> str:
    records = table2_records().get(name)
    return markdown_link(mean_and_spread(records), f"{results}/table2/{name}") if records else NOT_RUN


def inside_small_stereo(_results: str) -> str:
    """What three iterations do in the network that comes with the package."""
    rows = []
    for layer, found in inside_network("small-stereo")["layers"].items():
        rows += [(layer, str(number), *routing_cells(row)) for number, row in enumerate(found, start=1)]
    return markdown_table((*ROUTING_COLUMNS, "useful inputs, %", "positions"), rows)


def _variant(variant: str, results: str) -> str:
    return markdown_link(variant, f"{results}/three-iterations/{variant}")


BLOCKS = {
    "variants": variants,
    "gradient-at-start": gradient_at_start,
    "routing-at-end": routing_at_end,
    "folds": folds,
    "trained-in-full": trained_in_full,
    "inside-small-stereo": inside_small_stereo,
}
