import re

import numpy as np
import pytest
import torch

from emcaps.data.arrays import as_images, channels_first, parts_of_arrays
from own_images import bars


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_images_in_any_order_of_axes(kind):
    images, _ = bars(5, channels=3)
    np.testing.assert_array_equal(as_images(kind(images)), images)
    np.testing.assert_array_equal(as_images(kind(images.transpose(0, 2, 3, 1))), images)
    np.testing.assert_array_equal(as_images(kind(images[:, 0])), images[:, :1])


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((5, 20, 20)), r"images must be uint8 .*, not float64: give grey levels from 0 to 255"),
        (np.zeros((5, 20), np.uint8), r"not \(5, 20\): reshape"),
        (np.zeros((0, 1, 20, 20), np.uint8), r"there are no images: their shape is \(0, 1, 20, 20\)"),
        (np.zeros((5, 7, 20, 20), np.uint8), r"not \(5, 7, 20, 20\): leave out the other channels"),
        (np.zeros((5, 3, 20, 3), np.uint8), r"it cannot be told which axis"),
        (np.zeros((5, 20, 24), np.uint8), r"images must be square, not 20 x 24: crop, pad or stretch"),
    ],
)
def test_images_that_are_refused(images, message):
    with pytest.raises(ValueError, match=message):
        as_images(images)


def test_channels_first_takes_sides_that_differ():
    assert channels_first(np.zeros((5, 20, 24, 3), np.uint8)).shape == (5, 3, 20, 24)


def test_numbers_and_names_as_labels():
    images, labels = bars(12)
    parts = parts_of_arrays(images, labels, images[:6], labels[:6])
    assert parts["train"].names == ("0", "1", "2")
    np.testing.assert_array_equal(parts["train"].category, labels)
    assert parts["test"].category.dtype == np.int16
    names = np.array(["bee", "ant", "cat"])
    named = parts_of_arrays(images, names[labels], images[:6], names[labels[:6]])
    assert named["train"].names == ("ant", "bee", "cat")
    assert [named["test"].names[number] for number in named["test"].category] == list(names[labels[:6]])


IMAGES, LABELS = bars(6)


@pytest.mark.parametrize(
    ("labels", "test_labels", "names", "message"),
    [
        (LABELS[:5], LABELS, (), r"labels must have the shape \(6,\).*: give every image one label, and leave out"),
        (np.eye(3)[LABELS], LABELS, (), r"not \(6, 3\): if they are one-hot, use labels\.argmax\(1\)"),
        (LABELS, LABELS[:, None], (), r"not \(6, 1\): use test_labels\.reshape\(-1\)"),
        (LABELS.astype(float), LABELS, ("a", "b", "c"), r"labels must be whole numbers or names, not float64"),
        (LABELS - 1, LABELS, ("a", "b", "c"), r"labels must be numbers of classes, counted from 0, not -1: number the"),
        (LABELS - 1, LABELS, (), r"labels must be numbers .*, not -1: .*numpy\.unique\(labels, return_inverse=True\)"),
        (LABELS, LABELS + 1, ("a", "b", "c"), r"test_labels must be 0 to 2, since 3 classes have names, not 3: count"),
        (LABELS, LABELS + 1, (), r"1 of 4 classes have no training image \('3' is one\)"),
        (LABELS * 2, LABELS, (), r"2 of 5 classes have no training image \('1' is one\)"),
        (LABELS * 0, LABELS * 0, (), r"there must be 2 to 1000 classes to tell apart, found 1"),
        (LABELS + 999, LABELS, (), r"labels must be below 1000.*, not 1001"),
        (LABELS, LABELS, ("a", "b", "a"), r"every class needs a name of its own, and 'a' is not"),
        (np.array(list("abcabc")), np.array(list("abcabd")), (), r"test_labels must be names .*, and 'd' is none"),
    ],
)
def test_labels_that_are_refused(labels, test_labels, names, message):
    with pytest.raises(ValueError, match=message):
        parts_of_arrays(IMAGES, labels, IMAGES, test_labels, names=names)


def test_parts_of_different_sizes_are_refused():
    with pytest.raises(ValueError, match=r"the same channels and sides, not \(1, 20, 20\) and \(1, 24, 24\)"):
        parts_of_arrays(IMAGES, LABELS, bars(6, side=24)[0], LABELS)


@pytest.mark.parametrize(
    ("values", "remedy", "made"),
    [
        (np.array([0.0, 0.5, 1.0]), "(255 * images).round().astype('uint8')", [0, 128, 255]),
        (np.array([0.0, 99.6, 255.0]), "images.round().astype('uint8')", [0, 100, 255]),
        (np.array([0, 100, 255]), "images.astype('uint8')", [0, 100, 255]),
        (np.array([0, 256, 65535], np.uint16), "(images >> 8).astype('uint8')", [0, 1, 255]),
    ],
)
def test_the_remedy_for_images_of_another_type_gives_their_grey_levels(values, remedy, made):
    images = np.broadcast_to(values[:, None, None], (3, 4, 4))
    with pytest.raises(ValueError, match=rf"not {images.dtype}: .* {re.escape(remedy)}"):
        as_images(images)
    assert list(as_images(eval(remedy, {"images": images}))[:, 0, 0, 0]) == made


def test_labels_as_bytes_are_the_texts_that_they_hold():
    names = np.array(["bee", "äns", "cat"])
    coded = np.char.encode(names, "utf-8")
    parts = parts_of_arrays(IMAGES, coded[LABELS], IMAGES, coded[LABELS])
    assert parts["train"].names == tuple(sorted(names))
    assert [parts["test"].names[number] for number in parts["test"].category] == list(names[LABELS])


def test_labels_that_begin_with_1_are_told_so():
    with pytest.raises(ValueError, match=r"\('0' is one\): number the classes from 0, as labels - 1 does"):
        parts_of_arrays(IMAGES, LABELS + 1, IMAGES, LABELS + 1)
