"""Published figures: each stands once and says where it comes from."""

import re

from emcaps.experiments.published import _ALL, FIGURES, IMPLEMENTATIONS


def test_every_figure_has_a_title_of_its_own():
    assert len(FIGURES) == len(_ALL)
    assert FIGURES["Hinton, full, stereo, 1 iteration"].accuracy == 90.3
    assert FIGURES["Gritzman, small, mono, 2 iterations"].accuracy == 95.4


def test_every_figure_and_every_implementation_names_its_source():
    for source in (*(figure.source for figure in FIGURES.values()), *(one.code for one in IMPLEMENTATIONS)):
        assert source.text
        assert re.fullmatch(r"https://\S+", source.link)
