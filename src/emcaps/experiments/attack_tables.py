"""Tables and the picture of what `emcaps experiment attack` recorded, for the terminal and for pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from emcaps.files import atomic_write
from emcaps.report.figures import new_figure
from emcaps.report.markdown import markdown_table, two_digits
from emcaps.report.tables import plain_table

LOSSES = ("training", "logit")
UNTARGETED = (("none", "noise"), *((loss, attack) for loss in LOSSES for attack in ("fgsm", "bim", "pgd")))
TARGETED = tuple((loss, attack) for loss in LOSSES for attack in ("fgsm", "bim"))


class Cells(NamedTuple):
    """A table without its form: the columns that come first are texts."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    texts: int = 1


def untargeted(found: Mapping[str, Any]) -> Cells:
    """The accuracy under each attack on the network that it was made for; "worst" counts images that withstand all."""
    header = ("network", "epsilon", "grey levels", *map(_attack_name, UNTARGETED), "worst")
    rows = []
    for name, network in found["networks"].items():
        clean = _percent(network["accuracy"])
        rows.append((name, "0", "0", *[clean] * (len(UNTARGETED) + 1)))
        for epsilon in found["settings"]["epsilons"]:
            cells = [
                share_of(found, name, name, "untargeted", *one, epsilon) for one in (*UNTARGETED, ("all", "worst"))
            ]
            rows.append((name, f"{epsilon:g}", two_digits(epsilon * network["grey_levels"]), *cells))
    return Cells("Accuracy under untargeted attacks, %", header, rows)


def targeted(found: Mapping[str, Any]) -> Cells:
    """How often an attack towards a wrong class makes that class the answer."""
    rows = [
        (name, f"{epsilon:g}", *[share_of(found, name, name, "targeted", *one, epsilon) for one in TARGETED])
        for name in found["networks"]
        for epsilon in found["settings"]["targeted"]
    ]
    return Cells("Success of targeted attacks, %", ("network", "epsilon", *map(_attack_name, TARGETED)), rows)


def transfer(found: Mapping[str, Any]) -> Cells:
    """The accuracy of a network on images that were made for another, by the logit loss."""
    names = list(found["networks"])
    attacks = (("logit", "fgsm"), ("logit", "bim"), ("logit", "pgd"))
    rows = []
    for one in names:
        for other in names:
            for epsilon in found["settings"]["epsilons"]:
                cells = [share_of(found, one, other, "untargeted", *attack, epsilon) for attack in attacks]
                if one != other and "-" not in cells:
                    rows.append((one, other, f"{epsilon:g}", *cells))
    header = ("made for", "shown to", "epsilon", *map(_attack_name, attacks))
    return Cells("Accuracy on images made for another network, %", header, rows, texts=2)


def gradients(found: Mapping[str, Any]) -> Cells:
    """What the attacker's gradient is like on clean images."""
    rows = []
    for name, network in found["networks"].items():
        for loss, one in network["gradients"].items():
            shares = [_percent(one[key]) for key in ("zero_pixels", "zero_images")]
            rows.append((name, loss, f"{one['median_norm']:.2g}", *shares))
    header = ("network", "loss", "median norm", "zero pixels, %", "images without any, %")
    return Cells("Gradients on clean images", header, rows, texts=2)


TABLES: dict[str, Callable[[Mapping[str, Any]], Cells]] = {
    "untargeted": untargeted,
    "targeted": targeted,
    "gradients": gradients,
    "transfer": transfer,
}


def show_attack(found: Mapping[str, Any], console: Console) -> None:
    for make in TABLES.values():
        cells = make(found)
        if cells.rows:
            table = plain_table(cells.title)
            for number, column in enumerate(cells.header):
                table.add_column(column.replace(" ", "\n"), justify="left" if number < cells.texts else "right")
            for row in cells.rows:
                table.add_row(*row)
            console.print(table)
    counts = sorted({network["images"] for network in found["networks"].values()})
    console.print(
        f"{' and '.join(map(str, counts))} test images, seed {found['settings']['seed']}; epsilon in standard "
        "deviations of an image, with the median in grey levels; training and logit are the losses that the attacker "
        "raises; worst: right on the clean image and under every attack in the row"
    )


def attack_markdown(found: Mapping[str, Any], table: str) -> str:
    """One of the tables for a page."""
    cells = TABLES[table](found)
    return markdown_table(cells.header, cells.rows, left=range(cells.texts))


def draw_attack(found: Mapping[str, Any], path: Path) -> None:
    """Draw accuracy and success against epsilon, a colour for each network and a style for each kind of attack."""
    figure = new_figure((12, 6))
    left, right = figure.subplots(1, 2, sharey=True)
    styles = {
        ("none", "noise"): (":", "random signs"),
        ("training", "fgsm"): ("--", "FGSM, training loss"),
        ("all", "worst"): ("-", "worst of all"),
    }
    shown = _short_names(list(found["networks"]))
    for number, (name, network) in enumerate(found["networks"].items()):
        for (loss, attack), (style, what) in styles.items():
            sizes, shares = _line(found, name, "untargeted", loss, attack)
            accuracies = [100 * network["accuracy"], *shares]
            left.plot([0, *sizes], accuracies, style, marker=".", color=f"C{number}", label=f"{shown[name]}, {what}")
        for loss, style in (("training", "--"), ("logit", "-")):
            sizes, shares = _line(found, name, "targeted", loss, "bim")
            right.plot(sizes, shares, style, marker=".", color=f"C{number}", label=f"{shown[name]}, BIM, {loss} loss")
    left.set_ylabel("%")
    left.set_ylim(0, 100)
    for axes, title in ((left, "accuracy, untargeted"), (right, "success, targeted")):
        axes.set_title(title)
        axes.set_xlabel("epsilon, standard deviations of the image")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small", ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.12))  # below the lines
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=100, format="png")


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """Each path by as many of its last parts as tell all of them apart: whole paths would leave the lines no room."""
    parts = [Path(name).parts for name in names]
    for length in range(1, max(map(len, parts), default=0) + 1):
        short = [str(Path(*each[-length:])) for each in parts]
        if len(set(short)) == len(names):
            return dict(zip(names, short, strict=True))
    return dict(zip(names, names, strict=True))


def _line(found: Mapping[str, Any], name: str, goal: str, loss: str, attack: str) -> tuple[list[float], list[float]]:
    wanted = (name, name, goal, loss, attack)
    points = sorted((row["epsilon"], 100 * row["share"]) for row in found["rows"] if _key(row) == wanted)
    return [size for size, _ in points], [share for _, share in points]


def share_of(
    found: Mapping[str, Any], made_for: str, shown_to: str, goal: str, loss: str, attack: str, epsilon: float
) -> str:
    """A share in percent; a dash where nothing was measured."""
    wanted = (made_for, shown_to, goal, loss, attack)
    shares = [row["share"] for row in found["rows"] if _key(row) == wanted and row["epsilon"] == epsilon]
    return _percent(shares[0]) if shares else "-"


def _key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(row[name] for name in ("made_for", "shown_to", "goal", "loss", "attack"))


def _attack_name(one: Sequence[str]) -> str:
    loss, attack = one
    return "random signs" if attack == "noise" else f"{attack.upper()} {loss}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
