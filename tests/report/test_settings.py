"""Every setting is listed with its value and a line that stands alone."""

import re

import pytest

from emcaps.config import SECTIONS, RunConfig, preset
from emcaps.report.settings import settings_of

LISTED = {one.name: one for one in settings_of(preset("tiny").override({"train.steps": 7}))}


def test_all_settings_are_listed_with_their_values():
    assert list(LISTED) == [f"{section}.{key}" for section in SECTIONS for key in vars(getattr(RunConfig(), section))]
    assert (LISTED["network.conv_channels"].value, LISTED["train.steps"].value) == ("32", "7")
    assert (LISTED["network.layers"].value, LISTED["data.names"].value) == ("none", "none")


@pytest.mark.parametrize("name", LISTED)
def test_a_setting_says_what_it_is_in_a_sentence(name):
    meaning = LISTED[name].meaning
    assert re.fullmatch(r"[^\n]{10,250}\.", meaning), meaning


def test_choices_are_named():
    assert LISTED["network.impl"].meaning.endswith(" One of auto, reference, triton, numba.")
    assert "One of" not in LISTED["network.kind"].meaning, "its sentence names them"
