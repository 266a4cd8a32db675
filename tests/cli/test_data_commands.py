"""`emcaps data make`, `get` and `show`."""

import functools
import os
import re
import sys

import pytest
from commands import TINY

from emcaps.data import toy_set
from emcaps.data.toys import make

rendered_once = functools.cache(make.render_instance)


@pytest.fixture
def quick_toys(monkeypatch):
    """One view of each toy, rendered once for all tests: what is rendered depends on the settings alone."""
    monkeypatch.setattr(toy_set, "QUICK", toy_set.Views((0,), (0,), (0,)))
    monkeypatch.setattr(make, "render_instance", rendered_once)


@pytest.mark.usefixtures("quick_toys")
def test_data_make_show_and_train_on_the_result(emcaps, tmp_path):
    status, out, _ = emcaps("data", "make", "--quick")
    assert status == 0
    assert out.split() == [str(tmp_path / "data" / f"toys48-{part}.npz") for part in ("train", "test")]

    status, out, _ = emcaps("data", "show", "toys", "--png", "sheet.png")
    assert status == 0
    assert re.search(r"train\s+25\s+5\s+4 6 7 8 9", out)
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")
    assert emcaps("train", "tiny", "--steps", 1, *TINY)[0] == 0
    assert "note:" not in emcaps("data", "make", "--quick")[2]
    assert "note: other toys were there before" in emcaps("data", "make", "--quick", "--seed", 1)[2]


@pytest.mark.usefixtures("quick_toys")
def test_toys_in_the_original_format_are_prepared_like_smallnorb(emcaps, tmp_path):
    """The six files, written by the toys and read by `data get --from`, give the images that `data make` gives."""
    import numpy as np

    assert emcaps("data", "make", "--quick")[0] == 0
    assert emcaps("data", "make", "--quick", "--originals", "originals")[0] == 0
    assert len(os.listdir(tmp_path / "originals")) == 6
    status, _, err = emcaps("data", "get", "--from", "originals")
    assert status == 1
    assert "is not the published file" in err
    status, _, err = emcaps("data", "get", "--from", "originals", "--unverified")
    assert status == 0, err
    for part in ("train", "test"):
        direct, prepared = (np.load(tmp_path / "data" / f"{name}48-{part}.npz") for name in ("toys", "smallnorb"))
        for name in direct.files:
            assert np.array_equal(direct[name], prepared[name]), name


def test_toys_are_not_written_over_files_that_may_be_smallnorbs_own(emcaps, tmp_path):
    (tmp_path / "originals").mkdir()
    (tmp_path / "originals" / "something").touch()
    assert "originals has files in it" in emcaps("data", "make", "--quick", "--originals", "originals")[2]


def test_data_show_asks_for_matplotlib_before_it_reads(emcaps, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    status, out, err = emcaps("data", "show", "toys", "--png", "sheet.png")
    assert (status, out) == (1, "")
    assert "pip install matplotlib" in err
