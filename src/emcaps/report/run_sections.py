"""The parts of a page that tell of one run: confusions, mistakes, objects, routing, where it was trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from emcaps.report.html import Html, cell, details, join, picture, section, table, tag
from emcaps.report.inspection import Inspection, Mistake, RoutedPicture, layers_of, reduced
from emcaps.report.run_record import RunRecord
from emcaps.report.settings import shown_value
from emcaps.report.svg_charts import Line, legend, line_chart
from emcaps.report.tables import MOST_COLUMNS, MOST_ROWS
from emcaps.train.evaluate import Evaluation, InstanceErrors
from emcaps.train.teachers import TEACHER

STYLE = """
.gallery { list-style: none; padding: 0; display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(11rem, 100%), 1fr)); }
@media (max-width: 30rem) { .gallery { grid-template-columns: repeat(auto-fill, minmax(8.3rem, 1fr)); gap: .6rem; } }
.gallery li { background: var(--surface); border: 1px solid var(--edge); border-radius: .5rem; padding: .7rem; }
.gallery p { margin: .35rem 0 0; font-size: .9rem; line-height: 1.4; }
.signs { padding-left: 1.2rem; }
"""
TITLES = {
    "confusions": "Confusions",
    "mistakes": "The worst mistakes",
    "objects": "Errors by object",
    "routing": "What routing does inside",
    "environment": "Where it was trained",
}
"""The parts of a run, by what their ids end with."""
SHOWN_SIDE = 112
"""How high pictures are shown, in CSS pixels."""
LONGEST_NAME = 60
"""Names of classes are cut after so many letters."""
SHOWN_SCORES = 3


def short(name: str) -> str:
    """A class's name, cut if it is very long."""
    return name if len(name) <= LONGEST_NAME else name[: LONGEST_NAME - 1] + "…"


def run_sections(record: RunRecord, found: Inspection | None, identity: str, level: int, side: int) -> list[Html]:
    """All parts; their ids begin with `identity`, and their pictures have at most `side` rows."""
    contents = (
        _confusions(record, found),
        _mistakes(found, side),
        _objects(found),
        _routing(record, found, side),
        _environment(record),
    )
    return [
        section(f"{identity}-{name}", title, *content, level=level)
        for (name, title), content in zip(TITLES.items(), contents, strict=True)
        if content
    ]


def _confusions(record: RunRecord, found: Inspection | None) -> list[Html]:
    if record.evaluations:
        content = []
        for part, result in record.evaluations.items():
            content.append(confusion_table(result, f"{part}, step {record.config.train.steps:,}"))
        return content
    if found is not None:
        return [confusion_table(found.evaluation, f"test, step {found.step:,}")]
    return []


def confusion_table(result: Evaluation, what: str) -> Html:
    """A row for each true class in percent of its images; with more than 12 classes, the most frequent confusions."""
    names = [short(name) for name in result.names]
    title = f"{what}: {100 * result.accuracy:.2f} % of {result.images:,} images are right"
    confusion = np.array(result.confusion)
    if len(names) > MOST_COLUMNS:
        wrong = confusion - np.diag(confusion.diagonal())
        rows = []
        for place in np.argsort(-wrong, axis=None, kind="stable")[:MOST_ROWS]:
            true, given = divmod(int(place), len(names))
            if count := int(wrong[true, given]):
                share = count / confusion[true].sum()
                rows.append([names[true], names[given], f"{count:,}", cell(f"{100 * share:.1f}", "wrong", share)])
        return table(f"{title}. The most frequent confusions", ["true", "given", "times", "% of true"], rows, (0, 1))
    rows = []
    for true, counts in enumerate(result.confusion):
        images = sum(counts)
        cells = [
            cell(f"{100 * count / images:.1f}", "right" if given == true else "wrong", count / images)
            if images
            else cell("-")
            for given, count in enumerate(counts)
        ]
        rows.append([names[true], *cells, f"{images:,}"])
    caption = f"{title}. Rows: the true class; columns: the answer, in % of the row"
    return table(caption, ["true \\ given", *names, "images"], rows)


def _mistakes(found: Inspection | None, side: int) -> list[Html]:
    if found is None:
        return []
    looked = _looked_at(found)
    if not found.mistakes:
        return [tag("p", f"There is no wrong answer among {looked}.")]
    names = found.evaluation.names
    wrong = round(found.looked_at * (1 - found.evaluation.accuracy))
    intro = (
        f"The network gives {wrong:,} wrong answers to {looked}. These are the ones whose score is furthest above the "
        "true class's."
    )
    return [
        tag("p", intro),
        tag("ul", join(_mistake(one, names, side) for one in found.mistakes), class_="gallery"),
    ]


def _mistake(one: Mistake, names: Sequence[str], side: int) -> Html:
    true, given = short(names[one.true]), short(names[one.given])
    best = sorted(range(len(names)), key=lambda number: -one.scores[number])[:SHOWN_SCORES]
    best = best if one.true in best else [*best[:-1], one.true]
    scores = ", ".join(f"{short(names[number])} {one.scores[number]:.3f}" for number in best)
    lines = [
        _shown(one.picture, f"test image of {true}, taken for {given}", side),
        tag("p", join([tag("strong", true), " taken for ", tag("strong", given)], "")),
        tag("p", scores, class_="quiet"),
    ]
    return tag("li", join([*lines, *([tag("p", one.viewpoint, class_="quiet")] if one.viewpoint else [])]))


def _shown(pixels: Any, alt: str, side: int) -> Html:
    small = reduced(pixels, side)
    return picture(small, alt, round(SHOWN_SIDE * small.shape[1] / small.shape[0]))


def _looked_at(found: Inspection) -> str:
    if found.looked_at < found.images:
        return f"{found.looked_at:,} of {found.images:,} test images (a quick look)"
    return f"all {found.images:,} test images"


def _objects(found: Inspection | None) -> list[Html]:
    if found is None or not found.evaluation.instances:
        return []
    wrong = [one for one in found.evaluation.instances if one.wrong]
    if not wrong:
        return [tag("p", f"Every object is recognised in every one of {_looked_at(found)}.")]
    caption = f"The objects that are not always recognised, of {len(found.evaluation.instances)}, the worst first"
    if len(wrong) > MOST_ROWS:
        caption += f" ({MOST_ROWS} of {len(wrong)})"
    header = ["class", "object", "images", "wrong", "wrong, %", "mostly taken for"]
    return [table(caption, header, [_object_row(one) for one in wrong[:MOST_ROWS]], left=(0, 5))]


def _object_row(one: InstanceErrors) -> list[object]:
    share = one.wrong / one.images
    bar = cell(f"{100 * share:.1f}", "wrong", share)
    return [short(one.category), one.instance, f"{one.images:,}", f"{one.wrong:,}", bar, short(one.mostly)]


def _routing(record: RunRecord, found: Inspection | None, side: int) -> list[Html]:
    if record.config.network.kind != "capsules":
        return [tag("p", "A CNN does not route.")] if found is not None else []
    watched = _watched(record)
    if found is None or found.routing is None:
        if not record.routing:
            return watched
        last = record.routing[-1]
        caption = f"Measured in training, at step {last['step']:,}"
        return [_routing_table(layers_of(last), caption), _explanation(), *watched]
    routing = found.routing
    content = [
        _routing_table(routing.layers, f"On {routing.images} test images, by the network of step {found.step:,}"),
        _explanation(),
    ]
    if routing.gains:
        texts = ", ".join(f"{name} {gain:.3f}" for name, gain in routing.gains.items())
        content.append(tag("p", f"Learned gains of the poses that the layers read: {texts}."))
    signs = []
    for one in routing.signs:
        figures, _, verdict = str(one).partition(": ")[2].partition(": ")
        inner = join([tag("strong", one.layer), f": {figures}. ", _capitalised(verdict)], "")
        signs.append(tag("li", inner, class_="note" if one.verdict else None))
    content += [tag("p", "Warning signs:"), tag("ul", join(signs), class_="signs")]
    if routing.pictures:
        content.append(_routed_pictures(routing.pictures, found.evaluation.names, side))
    return [*content, *watched]


def _capitalised(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _routing_table(layers: Mapping[str, Sequence[Mapping[str, Any]]], caption: str) -> Html:
    header = [
        "layer",
        "iteration",
        "entropy",
        "parents on one child, %",
        "effective children",
        "useful inputs, %",
        "mean activation",
        "active, %",
    ]
    rows = []
    for name, iterations in layers.items():
        for number, row in enumerate(iterations, start=1):
            rows.append(
                [
                    name,
                    number,
                    _bar(row, "entropy", 1, 2),
                    _bar(row, "lone_parents", 100, 1),
                    _plain(row, "effective_children", 1),
                    _bar(row, "logit_useful", 100, 0),
                    _bar(row, "activation", 1, 3),
                    _bar(row, "active", 100, 1),
                ]
            )
    return table(caption, header, rows)


def _number(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _bar(row: Mapping[str, Any], key: str, scale: float, digits: int) -> Html:
    value = _number(row, key)
    return cell("-") if value is None else cell(f"{scale * value:.{digits}f}", "bar", value)


def _plain(row: Mapping[str, Any], key: str, digits: int) -> Html:
    value = _number(row, key)
    return cell("-" if value is None else f"{value:.{digits}f}")


def _explanation() -> Html:
    return details(
        "What these figures mean",
        tag(
            "p",
            "Entropy: how evenly the parents of a child share it, 1 in the first iteration, which starts evenly, and 0 "
            "if one parent has all of it. Parents on one child: those that get over 90 % of their data from one child. "
            "Effective children: (Σ r)² / Σ r² over a parent's children, the median of all parents. Useful inputs: "
            "those of the logistic function between -5 and 5, where gradients get through. Active: capsules with an "
            "activation above 0.5.",
        ),
    )


def _routed_pictures(pictures: Sequence[RoutedPicture], names: Sequence[str], side: int) -> Html:
    iterations = len(pictures[0].overlays)
    rows = []
    for one in pictures:
        true, given = short(names[one.true]), short(names[one.given])
        overlays = [
            tag("td", _shown(overlay, f"data of the answer {given} to an image of {true}, iteration {number}", side))
            for number, overlay in enumerate(one.overlays, start=1)
        ]
        answer = f"{given} {one.score:.3f}" + ("" if one.true == one.given else " (wrong)")
        rows.append([true, tag("td", _shown(one.picture, f"test image of {true}", side)), *overlays, answer])
    caption = "Where the data of the answer came from: light places gave most. Iteration 1 is the even start"
    header = ["true class", "image", *(f"iteration {number}" for number in range(1, iterations + 1)), "answer"]
    return table(caption, header, rows, left=range(len(header)))


def _watched(record: RunRecord) -> list[Html]:
    """Charts of what train.watch wrote into the metrics: a line for each layer."""
    names = ("entropy", "lone_parents", "saturated")
    titles = ("Entropy of assignments", "Parents on one child", "Saturated inputs")
    layers = list(
        dict.fromkeys(key.removesuffix("_entropy") for row in record.rows for key in row if "_entropy" in key)
    )
    if not layers:
        return []
    charts = []
    for name, title in zip(names, titles, strict=True):
        lines = [
            Line(layer, [(row["step"], row[key]) for row in record.rows if (key := f"{layer}_{name}") in row], style)
            for style, layer in enumerate(layers)
        ]
        charts.append(line_chart(f"{title} in training", lines))
    return [legend([(layer, style) for style, layer in enumerate(layers)]), tag("div", join(charts), class_="charts")]


def _environment(record: RunRecord) -> list[Html]:
    if not record.environment:
        return []
    rows = []
    for name, value in record.environment.items():
        if name == "resumed" and isinstance(value, list):
            steps = [str(one.get("step", "?")) for one in value if isinstance(one, dict)]
            rows.append(["resumed", f"{len(value)} times, from step {', '.join(steps)}"])
        elif name == "data" and isinstance(value, dict):
            rows += [[f"SHA-256 of {_hashed(part)}", tag("code", digest)] for part, digest in value.items()]
        else:
            rows.append([name, value if isinstance(value, str) else shown_value(value)])
    return [table("Versions, machine and data, as the run recorded them", ["what", "value"], rows, left=(0, 1))]


def _hashed(part: str) -> str:
    return f"the weights of {part}" if part.startswith(TEACHER) else f"the {part} images"
