import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from emcaps.data import picture_files
from emcaps.data.picture_files import BrokenPictureError, is_grey, pictures_below, read_picture, resized


def save(path, array, **options):
    Image.fromarray(array).save(path, **options)
    return path


def test_a_picture_of_its_own_size_is_unchanged(tmp_path):
    colour = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    path = save(tmp_path / "a.png", colour)
    np.testing.assert_array_equal(read_picture(path, 16, "crop", 3), colour.transpose(2, 0, 1))
    assert not is_grey(path)
    grey = save(tmp_path / "b.png", colour[..., 0])
    np.testing.assert_array_equal(read_picture(grey, 16, "crop", 1)[0], colour[..., 0])
    np.testing.assert_array_equal(read_picture(grey, 16, "pad", 3), np.repeat(colour[None, ..., 0], 3, 0))
    assert is_grey(grey)


def test_the_three_ways_to_make_a_picture_square(tmp_path):
    wide = np.zeros((16, 32), np.uint8)
    wide[:, :8], wide[:, 24:] = 100, 200
    path = save(tmp_path / "a.png", wide)
    assert (read_picture(path, 16, "crop", 1) == 0).all()  # the middle
    padded = read_picture(path, 16, "pad", 1)[0]
    assert (padded[:4] == 0).all()
    assert (padded[12:] == 0).all()
    assert padded[8, 0] == 100
    assert padded[8, 15] == 200
    stretched = read_picture(path, 16, "stretch", 1)[0]
    assert (stretched[:, 0] == 100).all()
    assert (stretched[:, 15] == 200).all()
    np.testing.assert_array_equal(resized(wide[None, None], 16, "pad")[0, 0], padded)
    with pytest.raises(ValueError, match="unknown fit 'cut'"):
        read_picture(path, 16, "cut", 1)


def test_sixteen_bits_of_grey_are_not_clipped(tmp_path):
    path = save(tmp_path / "a.png", np.array([[0, 256 * 7], [256 * 200 + 3, 65535]], np.uint16))
    assert is_grey(path)
    assert read_picture(path, 2, "crop", 1)[0].tolist() == [[0, 7], [200, 255]]


def test_transparent_places_become_white(tmp_path):
    seen = np.zeros((8, 8, 4), np.uint8)
    seen[:, :4, 3] = 255
    picture = read_picture(save(tmp_path / "a.png", seen), 8, "crop", 3)
    assert (picture[:, :, :4] == 0).all()
    assert (picture[:, :, 4:] == 255).all()


def test_a_picture_is_turned_as_its_camera_says(tmp_path):
    lying = np.zeros((8, 8), np.uint8)
    lying[:, :4] = 255  # the camera was turned: this left half is the upper one
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = read_picture(save(tmp_path / "a.png", lying, exif=exif), 8, "crop", 1)[0]
    assert (picture[:4] == 255).all()
    assert (picture[4:] == 0).all()


def test_broken_pictures_are_named(tmp_path):
    whole = save(tmp_path / "a.png", np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)).read_bytes()
    for content in (b"", b"hello", whole[:40], whole[: len(whole) // 2]):
        (tmp_path / "broken.png").write_bytes(content)
        with pytest.raises(
            BrokenPictureError, match=r"broken\.png cannot be read as a picture \(.*\): replace or remove"
        ):
            read_picture(tmp_path / "broken.png", 32, "crop", 1)
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(tmp_path / "other.png", format="GIF")
    with pytest.raises(BrokenPictureError, match=r"other\.png cannot be read as a picture \(no PNG or JPEG\)"):
        read_picture(tmp_path / "other.png", 32, "crop", 1)


def test_a_picture_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path, monkeypatch):
    path = save(tmp_path / "bomb.png", np.zeros((200, 200), np.uint8))
    monkeypatch.setattr(picture_files, "MAX_PIXELS", 10_000)
    monkeypatch.setattr(picture_files, "_converted", None)  # decoding would fail
    with pytest.raises(BrokenPictureError, match=r"bomb\.png .*200 x 200 pixels, more than 10,000"):
        read_picture(path, 32, "crop", 1)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10_000)  # Pillow's own limit is told in the same way
    with pytest.raises(BrokenPictureError, match=r"bomb\.png cannot be read as a picture"):
        read_picture(path, 32, "crop", 1)


def test_a_png_that_announces_more_pixels_than_it_can_hold_is_refused(tmp_path, monkeypatch):
    """While one that is as small as a PNG can be, all of one colour, is read."""
    blank = save(tmp_path / "blank.png", np.zeros((2000, 2000), np.uint8))
    assert read_picture(blank, 8, "crop", 1).shape == (1, 8, 8)
    path = save(tmp_path / "bomb.png", np.zeros((2, 2), np.uint8))
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", 8000, 8000)
    content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    path.write_bytes(content)
    monkeypatch.setattr(picture_files, "_converted", None)  # decoding would fail
    with pytest.raises(BrokenPictureError, match=r"bomb\.png .*8000 x 8000 pixels, more than so small a file can hold"):
        read_picture(path, 32, "crop", 1)


def test_two_channels_are_no_picture(tmp_path):
    with pytest.raises(ValueError, match="a picture has 1, 3 or 4 channels, and this network reads 2"):
        read_picture(tmp_path / "a.png", 32, "crop", 2)


def test_pictures_are_found_in_order_and_others_counted(tmp_path):
    for name in ("b.PNG", "a.jpeg", "inner/c.jpg", "notes.txt", ".hidden.png", ".cache/d.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found, others = pictures_below(tmp_path, tmp_path)
    assert [str(path.relative_to(tmp_path)) for path in found] == ["a.jpeg", "b.PNG", "inner/c.jpg"]
    assert others == 1


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_link_out_of_the_folder_is_refused(tmp_path, kind):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.png").touch()
    folder = tmp_path / "pictures"
    folder.mkdir()
    target = tmp_path / "outside" / ("a.png" if kind == "file" else "")
    (folder / "link.png").symlink_to(target)
    with pytest.raises(ValueError, match=r"link\.png is a link that leads out of .*pictures: remove it"):
        pictures_below(folder, folder)
    (folder / "link.png").unlink()
    (folder / "b.png").touch()
    (folder / "link.png").symlink_to(folder / "b.png")  # inside is fine
    assert len(pictures_below(folder, folder)[0]) == 2


def test_a_link_to_a_folder_inside_is_refused_since_its_pictures_would_count_twice(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").touch()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(ValueError, match=r"b is a link to a folder.*remove the link"):
        pictures_below(tmp_path, tmp_path)
