"""Pictures in docs/images are what the recorded runs give; a picture that looks the same is not written again."""

import shutil

import numpy as np
import pytest
from matplotlib.image import imread, imsave

from emcaps.documents import pictures
from emcaps.documents.recorded import ROOT

COST = ROOT / "docs/images/cost.png"


def test_drawing_all_pictures_again_changes_nothing():
    assert pictures.remake_pictures(ROOT, write=False) == []


@pytest.mark.parametrize(
    ("side", "change", "alike"), [(0, 0.0, True), (3, 0.5, True), (8, 0.5, False), (400, 0.01, True)]
)
def test_a_change_that_shows_is_told_from_one_that_does_not(tmp_path, side, change, alike):
    """A square of the white margin gets darker."""
    image = np.array(imread(COST))
    image[:side, :side, :3] -= change
    imsave(tmp_path / "other.png", image.clip(0, 1))
    assert pictures.look_alike(COST, tmp_path / "other.png") is alike


def test_pictures_of_different_sizes_differ(tmp_path):
    imsave(tmp_path / "other.png", np.array(imread(COST))[:-1])
    assert not pictures.look_alike(COST, tmp_path / "other.png")


def test_a_picture_is_written_if_it_is_missing_or_changed(tmp_path, monkeypatch):
    def draw_one(folder):
        return [shutil.copyfile(COST, folder / "cost.png")]

    monkeypatch.setattr(pictures, "draw_all", draw_one)
    there = tmp_path / "docs/images/cost.png"
    assert pictures.remake_pictures(tmp_path, write=False) == ["docs/images/cost.png"]
    assert not there.exists()
    assert pictures.remake_pictures(tmp_path, write=True) == ["docs/images/cost.png"]
    assert there.read_bytes() == COST.read_bytes()
    assert pictures.remake_pictures(tmp_path, write=True) == []
    imsave(there, np.zeros_like(imread(COST)))
    assert pictures.remake_pictures(tmp_path, write=True) == ["docs/images/cost.png"]
    assert there.read_bytes() == COST.read_bytes()
