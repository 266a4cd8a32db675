"""Own pictures from the command line: import, train, resume, evaluate, predict; what is refused leaves nothing."""

import json
import os
import shutil
import sys

import numpy as np
import pytest
from commands import TINY

from own_images import bars, write_pictures


@pytest.fixture
def pictures(tmp_path):
    return write_pictures(tmp_path / "pictures")


def files_below(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file()) if folder.exists() else []


def test_import_train_resume_evaluate_and_predict(emcaps, tmp_path, pictures):
    status, out, err = emcaps("data", "import", pictures, "--name", "insects", "--size", 20, "--png", "sheet.png")
    assert status == 0, err
    for words in (["bee", "8", "2"], ["all", "24", "6"]):
        assert words in [line.split() for line in out.splitlines()]
    assert "20 x 20, colour" in out
    assert (tmp_path / "sheet.png").read_bytes().startswith(b"\x89PNG")
    assert files_below(tmp_path / "data") == ["insects-test.npz", "insects-train.npz"]
    assert "insects" in emcaps("info")[1]
    assert ["cat", "8", "2"] in [line.split() for line in emcaps("data", "show", "insects")[1].splitlines()]

    status, out, err = emcaps("train", "tiny", "--data", "insects", "--steps", 2, *TINY)
    assert status == 0, err
    assert out.startswith("run: runs/tiny-insects-seed0\n")
    assert ["true", "\\", "given", "ant", "bee", "cat", "images"] in [line.split() for line in out.splitlines()]
    assert emcaps("train", "--resume", "runs/tiny-insects-seed0", "--steps", 3)[0] == 0

    status, out, err = emcaps("eval", "runs/tiny-insects-seed0", "--by-instance", "--json", "found.json")
    assert status == 0
    assert "note: insects does not say which images show one object" in err
    assert json.loads((tmp_path / "found.json").read_text())["test"]["names"] == ["ant", "bee", "cat"]

    status, out, err = emcaps("predict", "runs/tiny-insects-seed0", pictures / "bee", pictures / "ant" / "000.png")
    assert status == 0, err
    assert len([line for line in out.splitlines() if ".png" in line or ".jpg" in line]) == 11


def test_a_folder_is_trained_on_as_it_is(emcaps, tmp_path, pictures):
    status, out, err = emcaps("train", "tiny", "--data", "pictures", "--steps", 1, *TINY)
    assert status == 0, err
    assert out.startswith("run: runs/tiny-pictures-seed0\n")
    config = json.loads((tmp_path / "runs" / "tiny-pictures-seed0" / "config.json").read_text())
    assert config["data"]["dataset"] == str(pictures)
    os.chdir(tmp_path / "data" if (tmp_path / "data").exists() else tmp_path / "runs")
    assert emcaps("train", "--resume", tmp_path / "runs" / "tiny-pictures-seed0", "--steps", 2)[0] == 0


def test_a_file_of_small_images_says_which_crop_it_takes(emcaps, tmp_path):
    images, labels = bars(30, side=18)
    np.savez(tmp_path / "mine.npz", images=images, labels=labels)
    types = ["--set", "network.conv1_types=4", "--set", "network.conv2_types=4", "--batch-size", 8]
    status, _, err = emcaps("train", "tiny", "--data", "mine.npz", "--steps", 1, *types)
    assert status == 0
    assert "note: data.crop is 18, the side of the images, which are smaller than 32" in err
    status, out, _ = emcaps("predict", "runs/tiny-mine-seed0", "mine.npz", "--json")
    assert status == 0
    rows = json.loads(out)
    assert len(rows) == 30
    assert rows[7]["file"] == "mine.npz[7]"
    assert rows[7]["answer"] == max(rows[7]["scores"], key=rows[7]["scores"].get)
    assert list(rows[7]["scores"]) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 3, 18, 18), np.uint8), "the network reads images of 1 channels, not 3"),
        (np.zeros((0, 1, 18, 18), np.uint8), "there are no images to classify"),
        (np.array(3), "images must be uint8"),
    ],
    ids=["colour", "none", "number"],
)
def test_predict_names_a_file_whose_images_the_network_cannot_read(emcaps, tmp_path, images, message):
    np.savez(tmp_path / "given.npz", images=images)
    status, out, err = emcaps("predict", "small-mono", "given.npz")
    assert (status, out, err.count("\n")) == (1, "", 1), err
    assert err.startswith(f"emcaps: given.npz: {message}")


def test_a_broken_picture_stops_the_import_or_is_skipped_by_name(emcaps, tmp_path, pictures):
    (pictures / "bee" / "bad.png").write_bytes(b"nothing")
    status, out, err = emcaps("data", "import", pictures, "--name", "insects")
    assert (status, out) == (1, "")
    assert "bad.png cannot be read as a picture" in err
    assert files_below(tmp_path / "data") == []
    status, _, err = emcaps("data", "import", pictures, "--name", "insects", "--skip-broken")
    assert status == 0
    assert "note: skipped: " in err
    assert "bad.png" in err
    status, _, err = emcaps("predict", "small-mono", pictures / "bee")
    assert status == 1
    assert "bad.png cannot be read" in err
    status, out, err = emcaps("predict", "small-mono", pictures / "bee", "--skip-broken")
    assert status == 0
    assert "bad.png" in err
    assert "airplane" in out or "car" in out or "human" in out or "animal" in out or "truck" in out


def test_an_import_that_is_stopped_leaves_the_old_set(emcaps, tmp_path, pictures, monkeypatch):
    from emcaps.data import sources

    assert emcaps("data", "import", pictures, "--name", "insects")[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "data").iterdir()}

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(sources, "read_picture", stop)
    status, _, err = emcaps("data", "import", pictures, "--name", "insects", "--size", 24)
    assert status == 130
    assert "nothing was written" in err
    assert {path: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before
    monkeypatch.undo()


def test_an_import_replaces_another_set_only_if_that_is_asked_for(emcaps, tmp_path, pictures):
    command = ("data", "import", pictures, "--name", "insects")
    assert emcaps(*command)[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "data").iterdir()}
    assert emcaps(*command)[0] == 0, "the same pictures again are the same set"
    for other in (("--grey",), ("--seed", 1), ("--fit", "pad")):
        status, out, err = emcaps(*command, *other)
        assert (status, out) == (1, "")
        assert err.splitlines()[-1] == (
            f"emcaps: {tmp_path / 'data'} has another set of the name 'insects' already: choose another --name, or "
            "replace that set by --replace; runs that were trained on it can then not be resumed"
        )
        assert {path: path.read_bytes() for path in (tmp_path / "data").iterdir()} == before
    assert emcaps(*command, "--grey", "--replace")[0] == 0
    assert {path: path.read_bytes() for path in (tmp_path / "data").iterdir()} != before


@pytest.mark.parametrize("part", ["train", "test"])
def test_an_import_mends_a_set_that_is_damaged_or_not_whole(emcaps, tmp_path, pictures, part):
    command = ("data", "import", pictures, "--name", "insects")
    assert emcaps(*command)[0] == 0
    path = tmp_path / "data" / f"insects-{part}.npz"
    path.write_bytes(path.read_bytes()[:-99])
    assert emcaps(*command, "--grey")[0] == 0
    path.unlink()
    assert emcaps(*command)[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "import", "nothing", "--name", "x"], "there is no nothing"),
        (["data", "import", "pictures", "--name", "mnist"], "'mnist' is the name of a built-in data set"),
        (["data", "import", "pictures", "--name", "x", "--fit", "pd"], "unknown fit 'pd': did you mean 'pad'?"),
        (["data", "import", "pictures", "--name", "x", "--test-share", "2"], "must lie between 0 and 1, not 2.0"),
        (["data", "get", "mnits"], "unknown dataset 'mnits': did you mean 'mnist'?"),
        (["train", "tiny", "--data", "nothing/here"], "there is no nothing/here: name a data set, a folder"),
        (["train", "tiny", "--data", "pictures", "--split", "azimuth"], "needs two cameras at labelled viewpoints"),
        (
            ["train", "tiny", "--data", "pictures", "--set", "data.splice=0.5"],
            "needs two cameras at labelled viewpoints",
        ),
        (["train", "tiny", "--data", "mnist"], "mnist-train.npz is not there: make it with `emcaps data get mnist`"),
        (["predict", "small-mono", "nothing.png"], "there is no file nothing.png"),
        (["predict", "small-mono", "notes.txt"], "notes.txt is no .png, .jpg, .jpeg or .npz file"),
        (["predict", "small-stereo", "pictures"], "this network reads 2: give the images as an .npz file"),
        (["predict", "small-mono", "runs"], "runs has no PNG or JPEG pictures"),
    ],
)
def test_mistakes_are_told_in_one_line(emcaps, tmp_path, pictures, arguments, message):
    (tmp_path / "notes.txt").touch()
    (tmp_path / "runs").mkdir()
    status, _, err = emcaps(*arguments)
    assert status == 1
    assert message in err
    assert err.count("\n") == 1
    assert files_below(tmp_path / "data") == []
    assert files_below(tmp_path / "runs") == []


def test_without_pillow_a_line_says_how_to_get_it(emcaps, pictures, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "pip install pillow" in emcaps("train", "tiny", "--data", pictures)[2]


def test_a_built_in_set_is_fetched_from_a_folder(emcaps, tmp_path):
    from emcaps.data.idx import idx_header

    (tmp_path / "files").mkdir()
    for stem in ("train", "t10k"):
        images, labels = bars(40, 10, 28)
        for name, array in ((f"{stem}-images-idx3-ubyte", images[:, 0]), (f"{stem}-labels-idx1-ubyte", labels)):
            array = array.astype(np.uint8)
            (tmp_path / "files" / name).write_bytes(idx_header(array) + array.tobytes())
    assert "is not the published file" in emcaps("data", "get", "mnist", "--from", "files")[2]
    status, out, _ = emcaps("data", "get", "mnist", "--from", "files", "--unverified")
    assert status == 0
    assert out.split() == [str(tmp_path / "data" / f"mnist-{part}.npz") for part in ("train", "test")]


def test_a_built_in_set_without_a_network_names_the_way_out(emcaps, monkeypatch):
    import urllib.request

    def offline(*_, **__):
        raise OSError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", offline)
    status, _, err = emcaps("data", "get", "cifar10")
    assert status == 1
    assert "cannot fetch https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz: Name or service not known" in err
    assert "`emcaps data get cifar10 --from FOLDER`" in err


@pytest.mark.parametrize("colours", ["--colour", "--grey"])
def test_a_folder_is_evaluated_as_the_network_was_trained(emcaps, tmp_path, pictures, colours):
    """The same pictures, as the prepared set and as the folder that it came from, get the same answers."""
    halves = tmp_path / "halves"
    for part in ("train", "test"):
        shutil.copytree(pictures, halves / part)
    assert emcaps("data", "import", halves, "--name", "insects", "--size", 20, "--fit", "pad", colours)[0] == 0
    assert emcaps("train", "tiny", "--data", "insects", "--steps", 2, *TINY, "--run", "run")[0] == 0
    found = {}
    for data in ("insects", "halves"):
        status, _, err = emcaps("eval", "run", "--data", data, "--json", f"{data}.json")
        assert status == 0, err
        found[data] = json.loads((tmp_path / f"{data}.json").read_text())["test"]
    assert found["insects"] == found["halves"]

    assert emcaps("data", "import", halves, "--name", "larger", "--size", 24, colours)[0] == 0
    status, _, err = emcaps("eval", "run", "--data", "larger")
    assert (status, "reads images of 20 pixels, and these have 24: import them with --size 20" in err) == (1, True)


def test_a_contact_sheet_beside_the_classes_is_replaced(emcaps, pictures):
    os.chdir(pictures)
    for _ in range(2):
        status, _, err = emcaps("data", "import", ".", "--name", "insects", "--size", 20, "--png", "sheet.png")
        assert status == 0, err


@pytest.mark.parametrize("name", ["ant/000.png", "ant/sheet.png", "sheets/new.png"])
def test_a_contact_sheet_in_a_subfolder_of_the_pictures_is_refused(emcaps, tmp_path, pictures, name):
    before = {path: path.read_bytes() for path in pictures.rglob("*") if path.is_file()}
    status, _, err = emcaps("data", "import", "pictures", "--name", "insects", "--png", pictures / name)
    assert status == 1
    assert err.startswith(f"emcaps: {pictures / name} lies in a subfolder of pictures, where the next import would")
    assert err.endswith(": name a --png outside of the subfolders\n")
    assert {path: path.read_bytes() for path in pictures.rglob("*") if path.is_file()} == before
    assert not (pictures / "sheets").exists()
    assert files_below(tmp_path / "data") == []


def test_files_of_another_kind_are_not_replaced(emcaps, tmp_path, pictures):
    assert emcaps("data", "import", pictures, "--name", "insects", "--size", 20)[0] == 0
    assert emcaps("train", "tiny", "--data", "insects", "--steps", 1, *TINY, "--run", "run")[0] == 0
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    for command in (
        ("eval", "run", "--json", "run/config.json"),
        ("eval", "run", "--json", "run/metrics.jsonl"),
        ("data", "show", "insects", "--png", "run/weights.safetensors"),
    ):
        status, _, err = emcaps(*command)
        assert (status, "so it is not replaced" in err, err.count("\n")) == (1, True, 1), err
    assert all(path.read_bytes() == content for path, content in before.items())
    (tmp_path / "found.json").touch()
    assert emcaps("eval", "run", "--json", "found.json")[0] == 0, "an empty file is replaced"
    assert emcaps("eval", "run", "--json", "found.json")[0] == 0, "an evaluation replaces an older one"


def test_a_run_resumes_with_pictures_that_were_moved_but_not_changed(emcaps, tmp_path, pictures):
    run = "runs/tiny-pictures-seed0"
    assert emcaps("train", "tiny", "--data", "pictures", "--steps", 1, *TINY)[0] == 0
    pictures.rename(tmp_path / "moved")
    status, _, err = emcaps("train", "--resume", run, "--steps", 2, "--data", "moved")
    assert status == 0, err
    config = json.loads((tmp_path / run / "config.json").read_text())
    assert config["data"]["dataset"] == str(tmp_path / "moved")
    shutil.copy(tmp_path / "moved" / "ant" / "000.png", tmp_path / "moved" / "bee" / "one more.png")
    status, _, err = emcaps("train", "--resume", run, "--steps", 3, "--data", "moved")
    assert status == 1
    assert "was trained on other data than this: put back what was added, changed or removed since" in err


def test_a_folder_without_a_test_part_is_evaluated_as_a_whole(emcaps, tmp_path, pictures):
    assert emcaps("train", "tiny", "--data", "pictures", "--steps", 1, *TINY)[0] == 0
    run = "runs/tiny-pictures-seed0"
    shutil.copytree(pictures, tmp_path / "others")
    for data, images in (("others", 30), ("pictures", 6)):  # the second was partly trained on
        status, _, err = emcaps("eval", run, "--data", data, "--json", "found.json")
        assert status == 0, err
        assert json.loads((tmp_path / "found.json").read_text())["test"]["images"] == images
    assert emcaps("eval", run, "--json", "-")[0] == 1
    assert not (tmp_path / "-").exists()
    uncropped = ["--run", "uncropped", *TINY, "--set", "data.crop=32", "--set", "data.max_shift=0"]
    assert emcaps("train", "tiny", "--data", "pictures", "--steps", 1, *uncropped)[0] == 0
    status, _, err = emcaps("eval", "uncropped", "--crops", 13)
    assert status == 1
    assert "--crops 13 needs images that are larger than the network's crops of" in err


def test_a_run_among_the_pictures_is_refused_and_leaves_nothing(emcaps, pictures):
    before = files_below(pictures)
    os.chdir(pictures)
    status, _, err = emcaps("train", "tiny", "--data", ".", "--steps", 1, *TINY)
    assert status == 1
    assert "would lie among the pictures of .: name another with --run" in err
    assert files_below(pictures) == before
    assert not (pictures / "runs").exists()


def test_answers_in_json_are_ascii(emcaps, tmp_path):
    write_pictures(tmp_path / "pictures")
    (tmp_path / "pictures" / "ant").rename(tmp_path / "pictures" / "Ämse")
    assert emcaps("train", "tiny", "--data", "pictures", "--steps", 1, *TINY)[0] == 0
    status, out, err = emcaps("predict", "runs/tiny-pictures-seed0", "pictures/bee", "--json")
    assert status == 0, err
    assert out.isascii()
    assert "Ämse" in json.loads(out)[0]["scores"]


def test_a_setting_is_given_once(emcaps, pictures):
    status, _, err = emcaps("train", "tiny", "--data", "pictures", "--steps", 1, "--set", "train.steps=2")
    assert status == 1
    assert "train.steps is set by an option and by --set: leave one of them out" in err


def test_what_a_prepared_set_has_already_cannot_be_set(emcaps, tmp_path, pictures):
    assert emcaps("data", "import", pictures, "--name", "insects")[0] == 0
    status, _, err = emcaps("train", "tiny", "--data", "insects", "--steps", 1, *TINY, "--set", "data.size=64")
    assert status == 1
    assert "data.size is that of the set insects, which is prepared: leave it out, or import" in err
    assert not (tmp_path / "runs").exists()
    assert emcaps("train", "tiny", "--data", "pictures", "--steps", 1, *TINY, "--set", "data.size=40")[0] == 0
