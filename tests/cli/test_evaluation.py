"""`emcaps eval`: of runs, of single files, and of other data than the run's."""

import json
import os
import re
import signal

from commands import TINY

from emcaps.config import preset
from emcaps.train import train


def test_train_eval_resume(emcaps, data, tmp_path):
    status, out, _ = emcaps("train", "tiny", "--steps", 3, "--run", "runs/first", *TINY)
    assert status == 0
    assert "run: runs/first" in out
    assert re.search(r"test accuracy [\d.]+ % of 200 images\s+step 3", out)

    status, out, _ = emcaps("eval", "runs/first", "--json", "result.json")
    assert status == 0
    result = json.loads((tmp_path / "result.json").read_text())
    recorded = json.loads((tmp_path / "runs/first/evaluation.json").read_text())
    assert result == {name: value for name, value in recorded.items() if name != "test instances"}
    assert f"test accuracy {100 * recorded['test']['accuracy']:.2f} % of 200 images" in out

    status, out, _ = emcaps("eval", "runs/first", "--by-instance", "--json", "result.json")
    assert status == 0
    assert json.loads((tmp_path / "result.json").read_text()) == recorded
    toys = recorded["test instances"]
    assert sum(toy["images"] for toy in toys) == 200
    assert sum(toy["wrong"] for toy in toys) == round(200 * (1 - recorded["test"]["accuracy"]))
    assert re.search(rf"{toys[0]['category']} +{toys[0]['instance']} +{toys[0]['images']} +{toys[0]['wrong']}", out)

    status, _, err = emcaps("train", "tiny", "--run", "runs/first", *TINY)
    assert status == 1
    assert "holds a run already" in err
    assert "--resume runs/first" in err
    emcaps("train", "tiny", "--steps", 1, "--run", "a b", *TINY)
    assert "--resume 'a b'" in emcaps("train", "tiny", "--run", "a b", *TINY)[2]

    assert emcaps("train", "--resume", "runs/first", "--steps", 5)[0] == 0


def test_what_a_resumed_run_cannot_change_is_named(emcaps, data):
    emcaps("train", "tiny", "--steps", 1, "--run", "r", *TINY)
    _, _, err = emcaps("train", "--resume", "r", "--seed", 3, "--data", "smallnorb")
    assert err.startswith(
        "emcaps: a resumed run keeps its settings, but in r data.dataset is 'toys' and cannot become 'smallnorb'; "
        "train.seed is 0 and cannot become 3. Only train.steps, "
    )
    assert emcaps("train", "--resume", "r", "--seed", 0)[0] == 0, "as it is"
    assert "train.teachers is () and cannot become ('.',)" in emcaps("train", "--resume", "r", "--teacher", "r")[2]
    assert "--resume r says which run to train: leave out --run s" in emcaps("train", "--resume", "r", "--run", "s")[2]
    assert "which run to train: leave out the preset 'tiny'" in emcaps("train", "tiny", "--resume", "r")[2]


def test_eval_with_several_crops_and_a_single_file(emcaps, data):
    emcaps("train", "tiny", "--steps", 1, "--run", "r", *TINY)
    assert emcaps("eval", "r/weights.safetensors", "--crops", 13)[0] == 0
    for crops in (5, 0):
        assert (
            f"emcaps: crops must be 1 (the centre) or 13 (shifted along the diagonals), not {crops}"
            in (emcaps("eval", "r", "--crops", crops)[2])
        )


def test_evaluating_images_that_may_have_been_trained_on_says_so(emcaps, data, tmp_path):
    emcaps("train", "tiny", "--steps", 1, "--run", "run [one]", *TINY)
    status, out, err = emcaps("eval", "run [one]")
    assert (status, err.count("note:")) == (0, 0)
    assert "run [one], step 1" in out, "brackets are no markup"
    assert (
        "note: run [one] was trained with the split 'standard'" in emcaps("eval", "run [one]", "--split", "azimuth")[2]
    )
    file = tmp_path / "run [one]/environment.json"
    found = json.loads(file.read_text())
    file.write_text(json.dumps(found | {"data": {"train": "other", "test": "other"}}))
    assert "note: these are not the images that run [one] was" in emcaps("eval", "run [one]")[2]


def test_eval_needs_the_test_file_alone(emcaps, data):
    emcaps("train", "tiny", "--steps", 1, "--run", "r", *TINY)
    expected = emcaps("eval", "r")
    (data / "toys48-train.npz").unlink()
    assert expected[0] == 0
    assert emcaps("eval", "r")[:2] == expected[:2]  # what is left shows seconds
    assert "toys48-train.npz is not there" in emcaps("eval", "r", "--split", "validation")[2]


def test_a_network_that_is_not_trained_to_its_end_is_told(emcaps, data, tmp_path):
    def stop(progress):
        if progress.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    settings = dict(one.split("=") for one in TINY if "=" in one) | {"train.batch_size": 8, "train.steps": 1500}
    assert not train(preset("tiny").override(settings), tmp_path / "run", device="cpu", on_progress=stop).complete
    note = "note: run is not trained to its end: step 2 of 1,500"
    assert note in emcaps("eval", "run")[2]
    assert note in emcaps("export", "run", "--pt2", "run.pt2")[2]
    (tmp_path / "some.npz").write_bytes(b"")
    assert note in emcaps("predict", "run", "some.npz")[2]
    assert "note: small-mono" not in emcaps("predict", "small-mono", "some.npz")[2]
