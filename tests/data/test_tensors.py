from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from emcaps.data.prepared import Examples
from emcaps.data.tensors import to_tensors

MakeExamples = Callable[..., Examples]


def test_to_tensors_stereo_keeps_pairs(make_examples: MakeExamples) -> None:
    examples = make_examples(3)
    images, labels = to_tensors(examples, "stereo", "cpu")
    assert (images.dtype, labels.dtype) == (torch.uint8, torch.int64)
    np.testing.assert_array_equal(images.numpy(), examples.images)
    assert labels.tolist() == examples.category.tolist()


def test_to_tensors_mono_puts_the_cameras_of_a_pair_side_by_side(make_examples: MakeExamples) -> None:
    examples = make_examples(3, category=[4, 0, 2])
    images, labels = to_tensors(examples, "mono", torch.device("cpu"))
    assert images.shape == (6, 1, 48, 48)
    assert labels.dtype == torch.int64
    assert labels.tolist() == [4, 4, 0, 0, 2, 2]
    for k in range(3):
        for camera in range(2):
            np.testing.assert_array_equal(images[2 * k + camera, 0].numpy(), examples.images[k, camera])


def test_to_tensors_of_an_unknown_view(make_examples: MakeExamples) -> None:
    with pytest.raises(ValueError, match=r"unknown view 'sterio': did you mean 'stereo'"):
        to_tensors(make_examples(1), "sterio", "cpu")
