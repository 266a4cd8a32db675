"""The tutorial on routing: what its code prints, and two pictures of what it computes.

The pictures use these variables of the page: activation (5), votes (5, 2, 4, 4), trace, and routed by competition.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from emcaps.documents.page_code import printed_blocks, run_page
from emcaps.files import atomic_write
from emcaps.report.figures import new_figure

PAGE = "docs/tutorials/routing.md"
BLOCKS = printed_blocks(PAGE, 5)
PARENTS = (("face", "tab:blue", "o"), ("boat", "tab:orange", "s"))


def draw_pictures(folder: Path) -> None:
    names = run_page(PAGE).names
    draw_votes(names["votes"], names["activation"], names["trace"], folder / "routing-tutorial.png")
    draw_positions(names["routed"], folder / "routing-tutorial-positions.png")


def draw_votes(votes: Any, activation: Any, trace: Any, path: Path) -> None:
    """A panel for each iteration: votes as large as they count, and the parents' Gaussians."""
    from matplotlib.patches import Ellipse

    figure = new_figure((7.5, 6.8))
    panels = figure.subplots(2, 2, sharex=True, sharey=True)
    for number, (panel, step) in enumerate(zip(panels.flat, trace, strict=True), start=1):
        shares = step.assignment[0, 0, 0, 0, 0] * activation[:, None]
        for parent, (name, colour, marker) in enumerate(PARENTS):
            across, down = votes[:, parent, :2, 3].T
            sizes = 20 + 230 * shares[:, parent]
            panel.scatter(across, down, sizes, colour, marker=marker, alpha=0.6, label=f"votes for the {name}")
            mean = step.mean[0, 0, 0, parent, :2, 3].tolist()
            width, height = (4 * step.variance[0, 0, 0, parent, :2, 3].sqrt()).tolist()
            panel.add_patch(Ellipse(mean, width, height, fill=False, edgecolor=colour, linewidth=2))
        face, boat = step.activation.flatten().tolist()
        panel.set_title(f"iteration {number}: face {face:.2f}, boat {boat:.2f}")
    panels[0, 0].set(xlim=(-8, 58), ylim=(52, -12))
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    figure.supxlabel("pixels across")
    figure.supylabel("pixels down")
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=110, format="png")


def draw_positions(routed: Any, path: Path) -> None:
    """Children below, parents above, and lines as thick as the assignments after the last iteration."""
    figure = new_figure((7.5, 3.1))
    titles = {"all": "positions compete", "types": "positions do not compete"}
    for panel, (competition, title) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        assignment = routed[competition][-1].assignment[0, 0, :, 0, :, 0, 0]  # (parent position, offset)
        given = [0.0] * 5
        for parent, shares in enumerate(assignment.tolist()):
            for offset, share in enumerate(shares):
                given[parent + offset] += share
                panel.plot((parent + offset, parent + 1), (0, 1), color="tab:blue", linewidth=0.3 + 7 * share)
        panel.scatter(range(1, 4), [1] * 3, 500, "tab:orange", zorder=2)
        panel.scatter(range(5), [0] * 5, 500, "white", edgecolor="black", zorder=2)
        for child, (value, total) in enumerate(zip((0, 0, 6, 10, 10), given, strict=True)):
            panel.text(child, 0, value, ha="center", va="center")
            panel.text(child, -0.3, f"{total:.1f}", ha="center", va="center")
        for parent, mean in enumerate(routed[competition][-1].mean[0, 0, :, 0, 0, 3].tolist()):
            panel.text(parent + 1, 1, f"{mean:.1f}", ha="center", va="center", fontsize=8)
        panel.set(title=title, xlim=(-0.6, 4.6), ylim=(-0.5, 1.3))
        panel.axis("off")
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=110, format="png")
