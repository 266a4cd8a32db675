"""The picture of what a decoder draws: each panel shows the pixels that its title and label name."""

import numpy as np

from emcaps.analysis.drawings import STEPS, Drawings
from emcaps.experiments import pose_drawings
from emcaps.report.figures import new_figure

SIDE = 5


def test_every_panel_shows_what_it_names(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    images, drawn, variations = (
        random.integers(256, size=(*shape, SIDE, SIDE), dtype=np.uint8) for shape in ((2,), (2,), (16, len(STEPS)))
    )
    record = pose_drawings.record_of(Drawings([0, 3], images, drawn, 3, variations), ("ant", "bee", "cat", "dog"))
    figures = []
    monkeypatch.setattr(pose_drawings, "new_figure", lambda size: figures.append(new_figure(size)) or figures[-1])
    pose_drawings.draw_drawings(record, tmp_path / "drawn.png")
    left, right = figures[0].subfigs
    shown = [np.asarray(panel.images[0].get_array()) for panel in left.axes]
    np.testing.assert_array_equal(shown, [images[0], drawn[0], images[1], drawn[1]])
    assert [panel.get_title() for panel in left.axes] == ["image", "drawn from its pose", "", ""]
    assert [panel.get_ylabel() for panel in left.axes] == ["ant", "", "dog", ""]
    strips = {panel.get_title(): np.asarray(panel.images[0].get_array()) for panel in right.axes}
    assert len(strips) == 16
    for number, variation in enumerate(variations):
        row, column = divmod(number, 4)
        strip = strips[f"row {row + 1}, column {column + 1}"]
        for step, picture in enumerate(variation):  # from left to right
            np.testing.assert_array_equal(strip[:, SIDE * step : SIDE * (step + 1)], picture)
    assert right.get_suptitle() == "the pose of the dog, one number moved from -2 to +2 standard deviations"
    assert (tmp_path / "drawn.png").stat().st_size > 10_000
