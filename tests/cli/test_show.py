"""`emcaps describe`, `info` and `demo`."""

import re
import sys

import pytest
from commands import in_a_process

from emcaps.config import PRESETS


def test_describe_small_prints_table_1(emcaps):
    status, out, _ = emcaps("describe", "small")
    lines = [re.sub(r"\s{2,}", " | ", line.strip()) for line in out.splitlines()]
    assert status == 0
    for line in (
        "input | (?, 32, 32, 1)",
        "↳ relu_conv1 | K=5, S=2, Ch=64 | (?, 16, 16, 64) | 1,664",
        "↳ primary_caps | K=1, S=1, Ch=8 | (?, 16, 16, 8) | 8,840",
        "↳ conv_caps1 | K=3, S=2, O=16 | (?, 7, 7, 16) | 72 | 2.61 | 18,464",
        "↳ conv_caps2 | K=3, S=1, O=16 | (?, 5, 5, 16) | 144 | 1.96 | 36,896",
        "↳ class_caps | flatten, O=5 | (?, 1, 1, 5) | 400 | 80.0 | 1,290",
        "total | 67,154",
    ):
        assert line in lines, out


@pytest.mark.parametrize("name", PRESETS)
def test_describe_every_preset(emcaps, name):
    assert emcaps("describe", name, "--stereo")[0] == 0


def test_info(emcaps, data):
    status, out, _ = emcaps("info")
    assert status == 0
    for text in ("torch", "impl reference", "ready", "data toys", "train and test in"):
        assert text in out


@pytest.mark.parametrize(
    ("stages", "said"), [(True, "for convolutional layers"), (False, "need compute capability 8.0")]
)
def test_info_says_which_sweeps_a_gpu_runs(emcaps, monkeypatch, stages, said):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("emcaps.routing.availability._capability", lambda index: (7, 5))
    monkeypatch.setattr("emcaps.routing.availability.has_asynchronous_copies", lambda index: stages)
    assert said in " ".join(emcaps("info")[1].split())


def test_info_prints_the_brackets_of_the_package_to_install(emcaps, monkeypatch):
    from emcaps.routing import availability

    monkeypatch.setattr(availability, "unavailable", lambda *_: ["pip install 'emcaps[numba]'"])
    assert "pip install 'emcaps[numba]'" in emcaps("info")[1]


def test_demo_in_short(emcaps, tmp_path, monkeypatch):
    """Without matplotlib it does all but draw; the second time it finds everything done, and draws."""
    from emcaps.experiments import demo

    monkeypatch.setattr(demo, "QUICK_STEPS", 2)
    for matplotlib_is_there in (False, True):
        with monkeypatch.context() as patch:
            if not matplotlib_is_there:
                patch.setitem(sys.modules, "matplotlib", None)
            status, out, err = emcaps("demo", "--quick")
        assert status == 0, err
        assert re.search(r"capsules, small\s+68,754\s+2\s", out)
        assert re.search(r"CNN baseline\s+4,253,349\s+2\s", out)
        assert ("pip install matplotlib" in out) is not matplotlib_is_there
        assert [path.name for path in sorted((tmp_path / "demo" / "quick").glob("*.png"))] == (
            ["routing.png", "toys.png"] if matplotlib_is_there else []
        )


def test_the_demo_trains_longer_than_the_quick_one():
    from emcaps.experiments.demo import QUICK_STEPS, STEPS, demo_config

    for quick, steps in ((False, STEPS), (True, QUICK_STEPS)):
        assert demo_config("small", quick=quick).train.steps == steps


def test_describe_takes_channels_classes_size_and_settings(emcaps):
    status, out, _ = emcaps(
        "describe", "tiny", "--channels", 3, "--classes", 10, "--size", 28, "--set", "network.conv2_types=6"
    )
    assert status == 0
    assert "tiny, 3 channels" in out
    for row in (r"input +\(\?, 28, 28, 3\)", r"conv_caps2 .*O=6 ", r"class_caps .*O=10 +\(\?, 1, 1, 10\)"):
        assert re.search(row, out), row


def test_describe_lists_all_settings(emcaps):
    status, out, _ = emcaps("describe", "--settings")
    assert status == 0
    assert re.search(r"network\.conv_channels +64 +A: channels of the first, ordinary convolution\.", out)
    assert re.search(r"train\.seed +0 +Seed of every random choice\.", out)
    assert out.splitlines()[0].strip() == "Settings and their defaults"
    _, out, _ = emcaps("describe", "tiny", "--settings", "--classes", 7)
    assert re.search(r"network\.conv_channels +32 ", out)
    assert re.search(r"network\.classes +7 ", out)
    status, _, err = emcaps("describe")
    assert (status, err) == (
        1,
        "emcaps: name a preset (tiny, small, full, cnn) to describe, or list all settings by --settings\n",
    )


def test_settings_are_listed_without_torch():
    code = "import sys; from emcaps.cli import app; app(['describe', '--settings'], standalone_mode=False)"
    done = in_a_process("-c", f"{code}; sys.exit('torch' in sys.modules)")
    assert done.returncode == 0, done.stderr


def test_describe_refuses_two_answers_to_how_many_channels(emcaps):
    status, _, err = emcaps("describe", "tiny", "--stereo", "--channels", 3)
    assert status == 1
    assert "--stereo means 2 channels and --channels says 3" in err


def test_describe_takes_other_layers(emcaps):
    layers = "network.layers=16:5:2, 32:3:2, 16"
    status, out, _ = emcaps("describe", "small", "--size", 64, "--set", layers)
    lines = [re.sub(r"\s{2,}", " | ", line.strip()) for line in out.splitlines()]
    assert status == 0
    for line in (
        "↳ conv_caps1 | K=5, S=2, O=16 | (?, 14, 14, 16) | 200 | 2.61 | 51,232",
        "↳ conv_caps2 | K=3, S=2, O=32 | (?, 6, 6, 32) | 144 | 2.72 | 73,792",
        "↳ conv_caps3 | K=3, S=1, O=16 | (?, 4, 4, 16) | 288 | 4.50 | 73,760",
        "↳ class_caps | flatten, O=5 | (?, 1, 1, 5) | 256 | 51.2 | 1,290",
    ):
        assert line in lines, out
    status, _, err = emcaps("describe", "small", "--size", 32, "--set", layers)
    assert status == 1
    assert "choose larger images, or smaller kernels or strides in network.layers, since conv_caps3's kernel" in err
    assert "of 3x3 does not fit into its grid of 2x2 children" in err
