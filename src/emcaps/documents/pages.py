"""The pages, and the blocks that each may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from emcaps.documents import (
    ablations,
    attacks,
    compatibility,
    cost,
    differences,
    guide,
    model_card,
    moved_digits,
    other_data,
    pitfalls,
    poses,
    readme,
    recipe,
    results_index,
    robustness,
    routing_tutorial,
    scale,
    smallnorb,
    speed,
    three_iterations,
    viewpoints,
)
from emcaps.documents.markers import fill_blocks
from emcaps.files import write_text

Blocks = Mapping[str, Callable[[str], str]]
"""Functions that give a block's lines for a page from which results/ is reached by this relative path."""
PAGES: dict[str, Blocks] = {
    "README.md": readme.BLOCKS,
    "docs/ablations.md": ablations.BLOCKS,
    "docs/attacks.md": attacks.BLOCKS,
    "docs/compatibility.md": compatibility.BLOCKS,
    "docs/cost.md": cost.BLOCKS,
    "docs/differences.md": differences.BLOCKS,
    "docs/guide.md": guide.BLOCKS,
    "docs/moved-digits.md": moved_digits.BLOCKS,
    "docs/other-data.md": other_data.BLOCKS,
    "docs/pitfalls.md": pitfalls.BLOCKS,
    "docs/poses.md": poses.BLOCKS,
    "docs/recipe.md": recipe.BLOCKS,
    "docs/robustness.md": robustness.BLOCKS,
    "docs/scale.md": scale.BLOCKS,
    "docs/smallnorb.md": smallnorb.BLOCKS,
    "docs/speed.md": speed.BLOCKS,
    "docs/three-iterations.md": three_iterations.BLOCKS,
    "docs/viewpoints.md": viewpoints.BLOCKS,
    routing_tutorial.PAGE: routing_tutorial.BLOCKS,
    "results/README.md": results_index.BLOCKS,
    "src/emcaps/weights/README.md": model_card.BLOCKS,
}


def find_pages(root: Path) -> list[str]:
    """The pages of a checkout that may have blocks: those above, and every other one in docs/."""
    others = {str(path.relative_to(root)) for path in (root / "docs").rglob("*.md")}
    return [page for page in sorted(others | set(PAGES)) if (root / page).is_file()]


def remake_page(page: str, text: str) -> str:
    """The page's text with all of its blocks made from the recorded runs."""
    results = "../" * page.count("/") + "results"
    blocks = PAGES.get(page, {})
    return fill_blocks(page, text, {name: partial(make, results) for name, make in blocks.items()})


def remake_pages(root: Path, *, write: bool) -> list[str]:
    """Make all pages of a checkout again; gives those that change, or would if they were written."""
    changed = []
    for page in find_pages(root):
        before = (root / page).read_text(encoding="utf-8")
        after = remake_page(page, before)
        if after != before:
            changed.append(page)
            if write:
                write_text(root / page, after)
    return changed
