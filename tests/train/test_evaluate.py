import importlib

import pytest
import torch
from torch import nn

from emcaps import RoutingOutput
from emcaps.config import preset
from emcaps.data.prepared import CATEGORIES
from emcaps.files import write_json
from emcaps.train import evaluate
from emcaps.train.evaluate import (
    Evaluation,
    check_is_evaluation,
    class_scores,
    errors_by_instance,
    images_at_a_time,
    write_evaluations,
)
from patterns import pattern_examples


class BrightestQuarter(nn.Module):
    """Answers by which quarter of the crop is brightest; the classes are its quarters."""

    def forward(self, images):
        half = images.shape[-1] // 2
        parts = [
            images[..., :half, :half],
            images[..., :half, half:],
            images[..., half:, :half],
            images[..., half:, half:],
        ]
        return torch.stack([part.mean((1, 2, 3)) for part in parts], 1)


def quarters(labels):
    images = torch.zeros(len(labels), 1, 48, 48, dtype=torch.uint8)
    for image, label in zip(images, labels, strict=True):
        row, column = divmod(label, 2)
        image[0, 24 * row : 24 * row + 24, 24 * column : 24 * column + 24] = 200
    return images


@pytest.mark.parametrize("crops", [1, 13])
@pytest.mark.parametrize("batch_size", [1, 3, 100])
def test_evaluate_counts_every_image_once(crops, batch_size):
    shown, labels = [0, 1, 2, 3, 3, 0, 1], torch.tensor([0, 1, 2, 3, 3, 1, 1])
    result = evaluate(
        BrightestQuarter(), quarters(shown), labels, crop=32, classes=4, crops=crops, batch_size=batch_size
    )
    assert result.accuracy == 6 / 7
    assert result.images == 7
    assert result.confusion == [[1, 0, 0, 0], [1, 2, 0, 0], [0, 0, 1, 0], [0, 0, 0, 2]]


@pytest.mark.parametrize("view", ["mono", "stereo"])
def test_errors_are_counted_by_object(view):
    """Against a loop over examples and cameras."""
    examples = pattern_examples((0, 3), views=5, seed=0)
    cameras = 2 if view == "mono" else 1
    given = torch.randint(5, (len(examples.category) * cameras,), generator=torch.Generator().manual_seed(0))
    given[examples.category.repeat(cameras) == 1] = 1
    wrong = {(category, instance): [] for category in range(5) for instance in (0, 3)}
    for number, answer in enumerate(given.tolist()):
        true = examples.category[number // cameras], examples.instance[number // cameras]
        if answer != true[0]:
            wrong[true].append(answer)
    found = errors_by_instance(given, examples)
    assert [one.wrong for one in found] == sorted((len(each) for each in wrong.values()), reverse=True)
    for one in found:
        each = wrong[CATEGORIES.index(one.category), one.instance]
        assert (one.images, one.wrong) == (5 * cameras, len(each))
        assert one.times == max((each.count(answer) for answer in each), default=0)
        assert one.mostly == (
            "" if not each else CATEGORIES[min(each, key=lambda answer: (-each.count(answer), answer))]
        )
    assert sum(one.category == "human" and one.wrong == 0 for one in found) == 2


class Scores(nn.Module):
    """The same scores for every image."""

    def __init__(self, *rows):
        super().__init__()
        self.rows = torch.tensor(rows)

    def forward(self, images):
        return RoutingOutput(torch.zeros(1), self.rows.repeat(len(images) // len(self.rows), 1))


def test_scores_that_are_not_finite_are_no_answer():
    with pytest.raises(ValueError, match="infinite or NaN scores"):
        evaluate(Scores([float("nan")] * 4), quarters([0]), torch.tensor([0]), crop=32, classes=4)


def test_a_crop_whose_capsules_are_all_dead_does_not_outvote_the_others():
    rows = [[0.0, 0.0, 0.0, 0.0]] + [[0.1, 0.9, 0.1, 0.1]] * 12
    result = evaluate(Scores(*rows), quarters([1]), torch.tensor([1]), crop=32, classes=4, crops=13)
    assert result.accuracy == 1.0


class LittleMemory(BrightestQuarter):
    """It has no memory for more than `most` images at once."""

    def __init__(self, most):
        super().__init__()
        self.most, self.sizes = most, []

    def forward(self, images):
        self.sizes.append(len(images))
        if len(images) > self.most:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().forward(images)


def test_an_evaluation_that_runs_out_of_memory_takes_fewer_images_at_a_time():
    labels = torch.arange(21) % 4
    images, network = quarters(labels.tolist()), LittleMemory(5)
    found = evaluate(network, images, labels, crop=32, classes=4, batch_size=16)
    assert (found.accuracy, found.images) == (1.0, 21)
    assert network.sizes == [16, 8, 4, 4, 4, 4, 4, 1]
    with pytest.raises(ValueError, match="not even one image"):
        evaluate(LittleMemory(0), images, labels, crop=32, classes=4, batch_size=16)


def test_evaluate_leaves_the_network_in_the_mode_it_was_in():
    network = BrightestQuarter()
    for mode in (True, False):
        network.train(mode)
        evaluate(network, quarters([0]), torch.tensor([0]), crop=32, classes=4)
        assert network.training is mode


def test_an_interrupted_evaluation_leaves_the_network_in_training():
    def interrupt(_done, _total):
        raise KeyboardInterrupt

    network = BrightestQuarter().train()
    with pytest.raises(KeyboardInterrupt):
        evaluate(network, quarters([0]), torch.tensor([0]), crop=32, classes=4, on_progress=interrupt)
    assert network.training


def test_class_scores_of_capsules_and_of_logits():
    activation = torch.tensor([[0.2, 0.9]])
    assert torch.equal(class_scores(RoutingOutput(torch.zeros(1, 2, 4, 4), activation)), activation)
    torch.testing.assert_close(class_scores(torch.tensor([[0.0, 0.0]])), torch.tensor([[0.5, 0.5]]))


@pytest.mark.parametrize(
    ("name", "crop", "impl", "free", "images"),
    [
        ("small", 32, "triton", 80, 2048),
        ("small", 48, "triton", 80, 910),
        ("tiny", 16, "reference", 80, 2048),
        ("small", 32, "reference", 80, 192),
        ("full", 32, "reference", 80, 32),
        ("small", 32, "reference", 4, 48),
        ("cnn", 32, "reference", 80, 2048),
    ],
)
def test_images_at_a_time_on_a_gpu(monkeypatch, name, crop, impl, free, images):
    """The reference takes about 65 MiB an image with the small network, and 540 MiB with the full one; free GiB."""
    evaluation = importlib.import_module("emcaps.train.evaluate")  # the package's name `evaluate` is the function
    monkeypatch.setattr(evaluation, "choose_implementation", lambda _wanted, _device: impl)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free * 2**30, 80 * 2**30))
    config = preset(name).override({"data.crop": crop})
    assert images_at_a_time(config, torch.device("cuda")) == images
    assert images_at_a_time(config, torch.device("cpu")) == 32


def test_an_evaluation_replaces_an_evaluation_and_no_other_json(tmp_path):
    path = tmp_path / "found.json"
    for content in ({"crop": 32}, {"runs": {"step": 3, "crops": 1}}, ["crops"]):
        write_json(path, content)
        with pytest.raises(ValueError, match="is there and is no evaluation, so it is not replaced: name another file"):
            check_is_evaluation(path)
    write_evaluations(path, {"test": Evaluation(1.0, 2, [[2]])}, step=3, crops=1)
    check_is_evaluation(path)
