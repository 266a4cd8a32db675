import os
import shutil

import numpy as np
import pytest
from PIL import Image

from emcaps.data.prepared import imported_path, load_prepared, save_prepared
from emcaps.data.sources import Options, read_source, source_path
from own_images import bars, write_pictures


@pytest.fixture
def folder(tmp_path):
    return write_pictures(tmp_path / "pictures")


def test_a_folder_of_class_folders(folder):
    (folder / "ant" / "notes.txt").touch()
    source = read_source(folder)
    train, test = source.parts["train"], source.parts["test"]
    assert train.names == test.names == ("ant", "bee", "cat")
    assert train.images.shape == (24, 3, 32, 32)
    assert np.bincount(test.category).tolist() == [2, 2, 2]
    assert (source.skipped, source.ignored) == ([], 1)
    again = read_source(folder).parts["train"]
    np.testing.assert_array_equal(again.images, train.images)
    other = read_source(folder, Options(seed=1)).parts["train"]
    assert (other.images != train.images).any()


def test_size_fit_share_and_colours(folder, tmp_path):
    source = read_source(folder, Options(size=24, fit="pad", colour=False, test_share=0.5))
    assert source.parts["train"].images.shape == (15, 1, 24, 24)
    assert source.parts["train"].fit == "pad"
    grey = write_pictures(tmp_path / "grey", colour=False)
    assert read_source(grey).parts["train"].images.shape[1] == 1
    assert read_source(grey, Options(colour=True)).parts["train"].images.shape[1] == 3
    shutil.copy(folder / "ant" / "000.png", grey / "ant" / "colour.png")
    assert read_source(grey).parts["train"].images.shape[1] == 3


def test_a_folder_that_is_split(folder, tmp_path):
    whole = tmp_path / "split"
    shutil.copytree(folder, whole / "train")
    shutil.copytree(folder / "bee", whole / "test" / "bee")
    parts = read_source(whole).parts
    assert (len(parts["train"].images), len(parts["test"].images)) == (30, 10)
    assert parts["test"].names == ("ant", "bee", "cat")
    assert set(parts["test"].category) == {1}
    (whole / "test" / "bee").rename(whole / "test" / "wasp")
    with pytest.raises(ValueError, match=r"test has the class 'wasp', which .*train lacks"):
        read_source(whole)
    (whole / "test").rename(whole / "val")
    with pytest.raises(
        ValueError, match=r"has the subfolders train, val, which look like parts .*: name them train and"
    ):
        read_source(whole)


def write_groups(folder, lines):
    (folder.parent / "groups.csv").write_text("".join(f"{picture},{group}\n" for picture, group in lines))
    return folder.parent / "groups.csv"


def pictures_of(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*.*g"))


def test_groups_stay_together(folder):
    group_of = {path: f"object {number // 3}" for number, path in enumerate(pictures_of(folder))}
    parts = read_source(folder, Options(groups=write_groups(folder, group_of.items()))).parts
    assert not set(parts["train"].instance) & set(parts["test"].instance)
    assert len(parts["train"].images) + len(parts["test"].images) == 30
    assert parts["train"].instance.dtype == np.int32


def test_groups_that_are_wrong(folder, tmp_path):
    lines = [(path, "one") for path in pictures_of(folder)]
    with pytest.raises(ValueError, match=r"groups\.csv has no line for cat.*: every picture needs a group"):
        read_source(folder, Options(groups=write_groups(folder, lines[:-1])))
    with pytest.raises(FileNotFoundError, match=r"there is no groups file .*none\.csv: name a CSV file"):
        read_source(folder, Options(groups=tmp_path / "none.csv"))
    (tmp_path / "groups.csv").write_text("ant/000.png\n")
    with pytest.raises(
        ValueError, match=r"groups\.csv, line 1: a line must be PICTURE,GROUP, with a comma, not 'ant/000.png'"
    ):
        read_source(folder, Options(groups=tmp_path / "groups.csv"))
    with pytest.raises(ValueError, match=r"groups\.csv, line 31: ant/000\.png is in two groups: leave it in one"):
        read_source(folder, Options(groups=write_groups(folder, [*lines, ("ant/000.png", "two")])))
    with pytest.raises(ValueError, match="the seed must be zero or more, not -1"):
        read_source(folder, Options(seed=-1))
    split = tmp_path / "split"
    shutil.copytree(folder, split / "train")
    shutil.copytree(folder, split / "test")
    lines = [(path, path.name) for path in pictures_of(split)]
    with pytest.raises(ValueError, match=r"30 groups have images in the training and in the test part \('000.png' is"):
        read_source(split, Options(groups=write_groups(split, lines)))


def test_a_broken_picture_is_named_or_skipped(folder):
    (folder / "bee" / "000broken.png").write_bytes(b"nothing")
    with pytest.raises(
        ValueError, match=r"000broken\.png cannot be read .*, or import the folder without such .* --skip-broken"
    ):
        read_source(folder)
    for colour in (None, True):
        source = read_source(folder, Options(skip_broken=True, colour=colour))
        assert len(source.skipped) == 1
        assert "000broken.png cannot be read" in source.skipped[0]
        assert sum(len(part.images) for part in source.parts.values()) == 30
        np.testing.assert_array_equal(source.parts["train"].category, read_source_without(folder).category)


def read_source_without(folder):
    path = folder / "bee" / "000broken.png"
    content = path.read_bytes()
    path.unlink()
    found = read_source(folder).parts["train"]
    path.write_bytes(content)
    return found


def test_a_picture_that_is_cut_off_is_skipped(folder):
    path = folder / "bee" / "big.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:3000])  # its header is whole
    assert len(read_source(folder, Options(skip_broken=True)).skipped) == 1


def test_a_class_of_broken_pictures_alone_is_empty(folder):
    for path in (folder / "bee").iterdir():
        path.write_bytes(b"nothing")
    with pytest.raises(ValueError, match=r"1 of 3 classes have no training image \('bee' is one\)"):
        read_source(folder, Options(skip_broken=True))


def test_folders_that_are_refused(folder, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no .*nothing"):
        read_source(tmp_path / "nothing")
    (folder / "empty").mkdir()
    with pytest.raises(ValueError, match=r"class folder .*empty has no PNG or JPEG pictures: add some, or remove"):
        read_source(folder)
    with pytest.raises(ValueError, match=r"empty has no subfolders: put the pictures of each class"):
        read_source(folder / "empty")
    with pytest.raises(ValueError, match=r"has 1 class folders \(ant\), and there must be 2 to 1000"):
        read_source(write_pictures(tmp_path / "one", ("ant",)))
    with pytest.raises(ValueError, match=r"000\.png is neither a folder of class subfolders nor an \.npz"):
        read_source(folder / "ant" / "000.png")
    for size in (4, 10**6):
        with pytest.raises(ValueError, match=rf"must be 8 to 1024 pixels, not {size}"):
            read_source(folder, Options(size=size))
    with pytest.raises(ValueError, match=r"every class has one image or group only"):
        read_source(write_pictures(tmp_path / "few", each=1))


def test_a_class_folder_that_is_a_link_out_is_refused(folder, tmp_path):
    shutil.move(folder / "cat", tmp_path / "cat")
    os.symlink(tmp_path / "cat", folder / "cat")
    with pytest.raises(ValueError, match=r"cat is a link that leads out of .*pictures"):
        read_source(folder)


def save(path, **arrays):
    np.savez_compressed(path, **arrays)
    return path


def test_an_npz_with_and_without_a_test_part(tmp_path):
    images, labels = bars(30, channels=3)
    parts = read_source(save(tmp_path / "a.npz", images=images, labels=labels)).parts
    assert (len(parts["train"].images), len(parts["test"].images)) == (24, 6)
    assert parts["train"].images.shape[1:] == (3, 20, 20)
    names = np.array(["ant", "bee", "cat"])
    path = save(
        tmp_path / "b.npz",
        images=images.transpose(0, 2, 3, 1),
        labels=labels,
        names=names,
        test_images=images[:6].transpose(0, 2, 3, 1),
        test_labels=labels[:6],
    )
    parts = read_source(path).parts
    np.testing.assert_array_equal(parts["test"].images, images[:6])
    assert parts["train"].names == ("ant", "bee", "cat")
    smaller = read_source(path, Options(size=16, colour=False)).parts
    assert smaller["test"].images.shape == (6, 1, 16, 16)


def test_groups_of_an_npz(tmp_path):
    images, labels = bars(30)
    group = np.repeat(np.array([f"object {number}" for number in range(10)]), 3)
    parts = read_source(save(tmp_path / "a.npz", images=images, labels=labels, groups=group)).parts
    assert not set(parts["train"].instance) & set(parts["test"].instance)
    given = {"test_images": images[:3], "test_labels": labels[:3]}
    path = save(tmp_path / "b.npz", images=images, labels=labels, groups=group, test_groups=group[:3], **given)
    with pytest.raises(ValueError, match=r"b\.npz: 1 groups have images in the training and in the test part"):
        read_source(path)
    path = save(tmp_path / "c.npz", images=images, labels=labels, groups=group[:5])
    with pytest.raises(ValueError, match=r"c\.npz: groups must have the shape \(30,\)"):
        read_source(path)
    path = save(tmp_path / "d.npz", images=images, labels=labels, groups=group, **given)
    with pytest.raises(ValueError, match=r"d\.npz: groups and test_groups belong together"):
        read_source(path)


def test_an_npz_of_images_that_are_not_square(tmp_path):
    images, labels = bars(30)
    path = save(tmp_path / "a.npz", images=images[..., :16], labels=labels)
    with pytest.raises(ValueError, match=r"a\.npz: images must be square, not 20 x 16: crop, pad or stretch them"):
        read_source(path)
    assert read_source(path, Options(size=16)).parts["train"].images.shape[2:] == (16, 16)


def test_npz_files_that_are_refused(tmp_path):
    images, labels = bars(30)
    for message, arrays in [
        (r"a\.npz: it has no labels, only images: write it again with numpy.savez\(file, images=", {"images": images}),
        (r"a\.npz: it has no images, labels, only x, y: write it again", {"x": images, "y": labels}),
        (
            r"a\.npz: test_images and test_labels belong together",
            {"images": images, "labels": labels, "test_images": images},
        ),
        (r"a\.npz: labels must have the shape \(30,\)", {"images": images, "labels": labels[:5]}),
        (
            r"a\.npz: labels must be 0 to 1, .*not 2",
            {"images": images, "labels": labels, "names": np.array(["a", "b"])},
        ),
        (r"a\.npz: there must be 2 to 1000 classes", {"images": images, "labels": labels * 0}),
        (r"a\.npz: images must be uint8", {"images": images / 255, "labels": labels}),
        (
            r"a\.npz: its array labels holds Python objects, .* such as those of labels\.astype\(str\): write it again",
            {"images": images, "labels": np.array(["ant", "bee"], object)[labels % 2]},
        ),
        (
            r"a\.npz: its array images holds Python objects",
            {"images": np.array([images, None], object), "labels": labels},
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            read_source(save(tmp_path / "a.npz", **arrays))
    (tmp_path / "b.npz").write_bytes(b"no zip")
    with pytest.raises(ValueError, match=r"b\.npz is not a whole \.npz file"):
        read_source(tmp_path / "b.npz")


def test_names_come_before_files(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    assert source_path("mnist", data) is None
    assert source_path("pictures", data) == folder.relative_to(tmp_path)
    assert source_path("nothing", data) is None
    assert source_path("nothing/here", data) is not None
    parts = read_source(folder).parts
    save_prepared({imported_path("pictures", part, data): examples for part, examples in parts.items()})
    assert source_path("pictures", data) is None
    found = load_prepared(imported_path("pictures", "test", data))
    np.testing.assert_array_equal(found.images, parts["test"].images)
    assert (found.names, found.fit, found.instance) == (("ant", "bee", "cat"), "crop", None)


def test_groups_from_a_spreadsheet_begin_with_a_byte_order_mark(folder):
    path = write_groups(folder, [(picture, number // 3) for number, picture in enumerate(pictures_of(folder))])
    without = read_source(folder, Options(groups=path)).parts
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    parts = read_source(folder, Options(groups=path)).parts
    assert np.array_equal(parts["test"].instance, without["test"].instance)


def test_a_link_to_a_picture_of_the_folder_would_count_twice(folder):
    (folder / "bee" / "again.png").symlink_to(folder / "ant" / "000.png")
    with pytest.raises(
        ValueError, match=r"again\.png is a link to .*000\.png, which would count twice: remove the link"
    ):
        read_source(folder)


def test_everything_is_tested_where_there_is_no_test_part(folder, tmp_path):
    for part in read_source(folder, Options(everything=True)).parts.values():
        assert len(part.images) == 30
    shutil.copytree(folder, tmp_path / "split" / "train")
    shutil.copytree(folder / "ant", tmp_path / "split" / "test" / "ant")
    assert len(read_source(tmp_path / "split", Options(everything=True)).parts["test"].images) == 10
