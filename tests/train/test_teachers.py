"""Networks that a run learns from: what they add to the loss, that they stay as they are, and what may not teach."""

import json
import os
import shutil
import signal

import pytest
import torch

from emcaps import RoutingOutput
from emcaps.config import preset
from emcaps.nn import build_network
from emcaps.nn.classifier import class_scores
from emcaps.train import load_network, train
from emcaps.train.checkpoint import save_weights
from emcaps.train.run_folder import read_config
from emcaps.train.step import loss_of, training_loss
from emcaps.train.teachers import load_teachers, mean_answer, teaching_loss
from train.ranks import together, train_rank
from train.runs import assert_same_run, numbers

IMAGES = (torch.arange(20 * 48 * 48) * 37 % 256).to(torch.uint8).view(20, 1, 48, 48)
LOGITS = torch.tensor([[0.0, 3.0, -1.0], [2.0, 2.0, -5.0]])


@pytest.fixture(scope="module")
def classroom(tmp_path_factory, data_folder):
    """Two complete runs, of a capsule network and a CNN, that other runs can learn from."""
    folder = tmp_path_factory.mktemp("classroom")
    small = {"data.crop": 16, "train.steps": 2, "train.batch_size": 8}
    types = {"network.conv_channels": 8, "network.primary_types": 2, "network.conv1_types": 4, "network.conv2_types": 4}
    train(preset("tiny").override(small | types), folder / "capsules", device="cpu", data_folder=data_folder)
    cnn = {"network.cnn_channels": 4, "network.cnn_hidden": 8}
    train(preset("cnn").override(small | cnn), folder / "cnn", device="cpu", data_folder=data_folder)
    return folder


@pytest.fixture
def config(config):
    """Runs lie in the classroom, beside their teachers."""
    return config.override({"train.teachers": ["../capsules", "../cnn/weights.safetensors"], "train.teaching": 0.5})


@pytest.mark.parametrize("output", [LOGITS, RoutingOutput(torch.zeros(2, 3, 4, 4), LOGITS.sigmoid())])
def test_the_loss_is_the_cross_entropy_between_the_answers(output):
    answer = torch.tensor([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]])
    scores = class_scores(output).double()
    expected = -sum(
        float(answer[i, j]) * float((scores[i, j] / scores[i].sum()).log()) for i in range(2) for j in range(3)
    )
    torch.testing.assert_close(float(teaching_loss(output, answer)), expected / 2, rtol=1e-5, atol=0)


def test_the_loss_is_least_where_the_answers_agree():
    """And finite, with a finite gradient, where an activation has underflowed to 0."""
    activation = torch.tensor([[0.8, 0.0, 0.2]], requires_grad=True)
    loss = teaching_loss(RoutingOutput(torch.zeros(1, 3, 4, 4), activation), torch.tensor([[0.8, 0.0, 0.2]]))
    loss.backward()
    assert activation.grad[0, [0, 2]].abs().max() < 1e-5
    unsure = RoutingOutput(torch.zeros(1, 3, 4, 4), torch.tensor([[1.0, 0.0, 0.0]]))
    assert teaching_loss(unsure, torch.tensor([[0.0, 1.0, 0.0]])).isfinite()


def test_a_step_adds_the_weighted_mean_answer_of_all_teachers(classroom, config):
    torch.manual_seed(0)
    teachers = load_teachers(config, classroom / "pupil", IMAGES)
    crops, labels = torch.randn(6, 1, 16, 16), torch.arange(6) % 5
    networks = [load_network(classroom / name / "weights.safetensors")[0] for name in ("capsules", "cnn")]
    shares = [network.eval()(crops) for network in networks]
    shares = [class_scores(one) / class_scores(one).sum(1, keepdim=True) for one in shares]
    answer = mean_answer(teachers, crops)
    torch.testing.assert_close(answer, (shares[0] + shares[1]) / 2)
    assert not answer.requires_grad

    network = build_network(config.network, 1, 16)
    output, loss = training_loss(network, crops, labels, config.train, 0.2, None, answer)
    expected = loss_of(output, labels, config.train, 0.2) + 0.5 * teaching_loss(output, answer)
    torch.testing.assert_close(loss, expected)


def interrupted_at(step):
    """What makes a run stop after this step."""

    def interrupt(progress):
        if progress.step == step:
            os.kill(os.getpid(), signal.SIGINT)

    return interrupt


def test_a_run_learns_from_its_teachers_and_resumes_to_the_same_bits(classroom, config, data_folder):
    before = {path: path.read_bytes() for path in classroom.rglob("*.safetensors")}
    whole, parts, alone = (classroom / name for name in ("whole", "parts", "alone"))
    train(config, whole, device="cpu", data_folder=data_folder)
    assert {path: path.read_bytes() for path in before} == before, "teachers learn nothing"

    assert not train(config, parts, device="cpu", data_folder=data_folder, on_progress=interrupted_at(7)).complete
    train(config, parts, device="cpu", data_folder=data_folder, resume=True)
    assert_same_run(whole, parts)

    without = config.override({"train.teachers": [], "train.teaching": 1.0})
    train(without, alone, device="cpu", data_folder=data_folder)
    assert numbers(alone)[0]["loss"] < numbers(whole)[0]["loss"]


def test_two_processes_learn_from_teachers_as_one_does(classroom, config, data_folder):
    train(config, classroom / "one", device="cpu", data_folder=data_folder)
    together(2, train_rank, config.to_json(), classroom / "two", data_folder)
    for row, want in zip(numbers(classroom / "two"), numbers(classroom / "one"), strict=True):
        assert row == pytest.approx(want, rel=1e-3)


def test_a_teacher_that_has_changed_stops_a_resumed_run(classroom, config, data_folder):
    shutil.copytree(classroom / "cnn", classroom / "other")
    config = config.override({"train.teachers": ["../other"]})
    train(config, classroom / "pupil", device="cpu", data_folder=data_folder, on_progress=interrupted_at(5))
    environment = json.loads((classroom / "pupil" / "environment.json").read_text())
    assert set(environment["data"]) == {"train", "test", "teacher 1"}

    weights = classroom / "other" / "weights.safetensors"
    network, learned, step = load_network(weights)
    with torch.no_grad():
        next(network.parameters()).add_(1)
    save_weights(weights, network, learned, step)
    with pytest.raises(
        ValueError,
        match=r"pupil had another teacher 1: its weights were not those of .*classroom\d+/other/weights\.safetensors\. "
        r"Restore them, .* or start a new run: emcaps train --config .*pupil$",
    ):
        train(config, classroom / "pupil", device="cpu", data_folder=data_folder, resume=True)


def test_a_run_that_was_moved_resumes_with_its_teachers_from_where_they_lie(classroom, config, data_folder):
    how = {"device": "cpu", "data_folder": data_folder}
    train(config, classroom / "stayed", **how)
    train(config, classroom / "leaving", **how, on_progress=interrupted_at(7))
    (classroom / "far/away").mkdir(parents=True)
    moved = (classroom / "leaving").rename(classroom / "far/away/moved")
    with pytest.raises(FileNotFoundError, match=r"be .*away/capsules, which is not there: .* all of them, in the"):
        train(config, moved, **how, resume=True)

    there = [f"../../{name}" for name in config.train.teachers]
    with pytest.raises(ValueError, match=r"had another teacher 1: .* in the same order"):
        train(config.override({"train.teachers": there[::-1]}), moved, **how, resume=True)
    with pytest.raises(ValueError, match=r"but in .*moved train\.teachers is \(.*\) and cannot become"):
        train(config.override({"train.teachers": there[:1]}), moved, **how, resume=True)
    config = config.override({"train.teachers": there})
    assert train(config, moved, **how, resume=True).complete
    assert read_config(moved) == config
    assert numbers(moved) == numbers(classroom / "stayed")


def test_a_complete_run_needs_its_teachers_no_more_unless_it_goes_further(classroom, config, data_folder):
    shutil.copytree(classroom / "cnn", classroom / "leaver")
    config = config.override({"train.teachers": ["../leaver"]})
    how = {"device": "cpu", "data_folder": data_folder}
    train(config, classroom / "taught", **how)
    shutil.rmtree(classroom / "leaver")
    before = numbers(classroom / "taught")
    assert train(config, classroom / "taught", **how, resume=True).complete
    assert numbers(classroom / "taught") == before
    with pytest.raises(FileNotFoundError, match="leaver, which is not there"):
        train(config.override({"train.steps": 14}), classroom / "taught", **how, resume=True)


def test_the_callers_random_numbers_are_left_alone(classroom, config):
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    assert len(load_teachers(config, classroom / "pupil", IMAGES)) == 2
    assert torch.equal(torch.rand(3), want)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.teachers": ["../nobody"]}, r"would be .*classroom\d+/nobody, which is not there: .* is complete"),
        (
            {"data.crop": 18, "data.standardise": "background"},
            r"capsules/weights\.safetensors reads crops of 16 pixels a side, not 18; images with data\.standardise "
            r"image, not background: use --set data\.crop=16 and --set data\.standardise=image, or another teacher",
        ),
        ({"data.view": "stereo"}, "reads images of 1 channel, not 2: use --set data.view=mono, or another teacher"),
    ],
)
def test_who_may_not_teach(classroom, config, data_folder, changes, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        train(config.override(changes), classroom / "refused", device="cpu", data_folder=data_folder)
    assert not (classroom / "refused").exists()


def test_a_teacher_that_was_interrupted_is_named_with_the_command_that_finishes_it(classroom, config, data_folder):
    how = {"device": "cpu", "data_folder": data_folder}
    alone = config.override({"train.teachers": [], "train.teaching": 1.0})
    train(alone, classroom / "dropout", **how, on_progress=interrupted_at(5))
    with pytest.raises(
        FileNotFoundError, match=r"the run in .*dropout is not: finish it with emcaps train --resume .*dropout$"
    ):
        train(config.override({"train.teachers": ["../dropout"]}), classroom / "pupil of dropout", **how)


@pytest.mark.parametrize("spoiled", [float("nan"), float("inf")])
def test_a_teacher_without_answers_is_refused_before_the_run_begins(classroom, config, data_folder, spoiled):
    """And not for the learning rate, of which it knows nothing."""
    network, learned, step = load_network(classroom / "cnn/weights.safetensors")
    with torch.no_grad():
        next(network.parameters()).fill_(spoiled)
    save_weights(classroom / "spoiled.safetensors", network, learned, step)
    config = config.override({"train.teachers": ["../capsules", "../spoiled.safetensors"]})
    with pytest.raises(
        ValueError, match=r"the teacher .*/spoiled\.safetensors answers NaN to images of the run: use an"
    ):
        train(config, classroom / "spoiled pupil", device="cpu", data_folder=data_folder)
    assert not (classroom / "spoiled pupil").exists()


def trained_with(classroom, changes):
    """A network like the capsules, as if it had been trained with other settings of its data."""
    config = read_config(classroom / "capsules").override(changes)
    path = classroom / "elsewhere.safetensors"
    save_weights(path, build_network(config.network, config.data.image_channels, config.data.crop), config, 2)
    return path.name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"data.names": list("abcde")},
            "tells a, b, c and 2 more apart, and the images show animal, .*: use another",
        ),
        ({"data.size": 20}, "reads images of 20 pixels a side, not 48: use images imported with --size 20, or"),
        ({"data.fit": "pad"}, r"reads images with data\.fit pad, not crop: use images imported with --fit pad"),
        ({"data.view": "stereo"}, "reads images of 2 channels, not 1: use --stereo, or another teacher"),
        ({"data.channels": 3}, "reads images of 3 channels, not 1: use images of 3 channels, or another teacher"),
    ],
)
def test_who_learned_from_other_images_may_not_teach(classroom, config, changes, message):
    config = config.override({"train.teachers": [f"../{trained_with(classroom, changes)}"]})
    with pytest.raises(ValueError, match=message):
        load_teachers(config, classroom / "pupil", IMAGES)


@pytest.mark.parametrize("split", ["validation", "azimuth-validation", "azimuth"])
def test_who_learned_from_held_out_examples_may_not_teach(classroom, config, split):
    for fold, other in ((1, split), (0, "standard")):
        name = trained_with(classroom, {"data.split": other, "data.fold": fold})
        taught = config.override({"train.teachers": [f"../{name}"], "data.split": split})
        with pytest.raises(
            ValueError, match=rf"trained on toys, split '{other}', fold {fold}, not toys, .*, fold 0: use"
        ):
            load_teachers(taught, classroom / "pupil", IMAGES)
    name = trained_with(classroom, {"data.split": split})
    assert load_teachers(taught, classroom / "pupil", IMAGES)
