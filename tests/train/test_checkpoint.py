import json
import logging
import os
import shutil
import tracemalloc

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from emcaps.config import TrainConfig
from emcaps.nn import build_network
from emcaps.train.average import AveragedWeights
from emcaps.train.checkpoint import (
    kept_checkpoints,
    load,
    load_network,
    load_newest,
    make_newest,
    restore,
    save_checkpoint,
    save_weights,
)
from emcaps.train.tensor_file import DIGEST, SHIPPED_FOLDER, DamagedFileError, TensorFile, digest_of


def trained(config, steps):
    torch.manual_seed(0)
    network = build_network(config.network, 1, config.data.crop)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    go_on(network, optimiser, steps)
    return network, optimiser


def last_step(network):
    """A run that averages nothing: the weights after its last step count."""
    return AveragedWeights(network, TrainConfig())


def go_on(network, optimiser, steps):
    images = torch.linspace(-1, 1, 2 * 16 * 16).view(2, 1, 16, 16)
    for _ in range(steps):
        optimiser.zero_grad()
        network(images).activation.sum().backward()
        optimiser.step()


def test_restored_training_goes_on_to_the_same_bits(tmp_path, config):
    straight, _ = trained(config, 6)
    network, optimiser = trained(config, 3)
    sums = {"loss": torch.tensor(1.25)}
    save_checkpoint(tmp_path / "c.safetensors", network, optimiser, sums, last_step(network), config, 3)

    other = build_network(config.network, 1, config.data.crop)
    other_optimiser = torch.optim.Adam(other.parameters(), lr=1e-2)
    other_sums = {"loss": torch.zeros(())}
    checkpoint = load(tmp_path / "c.safetensors")
    restore(checkpoint, other, other_optimiser, other_sums, last_step(other))
    go_on(other, other_optimiser, 3)
    assert checkpoint.step == 3
    assert checkpoint.config == config
    assert float(other_sums["loss"]) == 1.25
    for (name, want), got in zip(straight.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(want, got), name


def test_equal_networks_are_in_equal_files(tmp_path, config):
    network, _ = trained(config, 1)
    for number in range(8):  # by chance, two would be equal half of the time
        save_weights(tmp_path / str(number), network, config, 1)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1
    assert load(tmp_path / "0").config == config


def test_weights_trained_with_kernels_that_are_not_there_are_evaluated_with_others(tmp_path, config, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    network, _ = trained(config, 1)
    save_weights(tmp_path / "w", network, config.override({"network.impl": "triton"}), 1)
    loaded, used, _ = load_network(tmp_path / "w", "cpu")
    assert used.network.impl == "auto"
    images = torch.randn(2, 1, 16, 16)
    assert torch.equal(loaded(images).activation, network(images).activation)


PLAIN, FOR_GRAPHS = {}, {"capturable": True, "fused": True}  # as make_optimiser has them on a CPU and on a GPU


@pytest.mark.parametrize(("first", "then"), [(PLAIN, FOR_GRAPHS), (FOR_GRAPHS, PLAIN)])
def test_a_checkpoint_of_either_kind_of_adam_goes_on_with_the_other(tmp_path, config, first, then):
    def adam(network, options):
        return torch.optim.Adam(network.parameters(), lr=torch.tensor(1e-2) if options else 1e-2, **options)

    straight, _ = trained(config, 6)
    torch.manual_seed(0)
    network = build_network(config.network, 1, config.data.crop)
    optimiser = adam(network, first)
    go_on(network, optimiser, 3)
    save_checkpoint(tmp_path / "c.safetensors", network, optimiser, {}, last_step(network), config, 3)
    other = build_network(config.network, 1, config.data.crop)
    other_optimiser = adam(other, then)
    restore(load(tmp_path / "c.safetensors"), other, other_optimiser, {}, last_step(other))
    assert isinstance(other_optimiser.param_groups[0]["lr"], torch.Tensor if then else float)
    go_on(other, other_optimiser, 3)
    assert {float(state["step"]) for state in other_optimiser.state.values()} == {6.0}
    for want, got in zip(straight.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-5)


def test_load_network_from_weights_alone(tmp_path, config):
    network, _ = trained(config, 1)
    save_weights(tmp_path / "w.safetensors", network, config, 1)
    loaded, loaded_config, step = load_network(tmp_path / "w.safetensors")
    assert (loaded_config, step) == (config, 1)
    for name, value in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_load_rejects_what_is_missing_damaged_or_foreign(tmp_path, config):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*missing"):
        load(tmp_path / "missing")
    network, _ = trained(config, 1)
    path = tmp_path / "w.safetensors"
    save_weights(path, network, config, 1)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"w.safetensors is damaged or was not written by emcaps"):
        load(path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(
        ValueError, match=r"was not written by emcaps \(its header lacks config and step\): use another copy"
    ):
        load(path)
    for header in ({"config": "[]", "step": "1"}, {"config": "{nope", "step": "1"}, {"config": "{}", "step": "five"}):
        save_file({"x": torch.zeros(1)}, path, header)
        with pytest.raises(ValueError, match=r"w\.safetensors has a header that cannot be read"):
            load(path)


def test_load_network_rejects_tensors_of_another_network(tmp_path, config):
    network, _ = trained(config, 1)
    other = config.override({"network.conv2_types": 5})
    save_weights(tmp_path / "w.safetensors", network, other, 1)
    with pytest.raises(ValueError, match="does not hold the network that its own config describes"):
        load_network(tmp_path / "w.safetensors")


def header_of(path):
    with safe_open(path, "pt") as file:
        return file.metadata()


def changed(path, tensors=None, **texts):
    """Change a file's tensors or texts, and leave its digest out, as in a file from before digests."""
    kept = {name: text for name, text in header_of(path).items() if name != DIGEST}
    save_file(load_file(path) if tensors is None else tensors, path, kept | texts)


@pytest.fixture
def small_checkpoint(tmp_path, config):
    """A checkpoint at step 2, and a function that restores it into new objects."""
    network, optimiser = trained(config, 2)
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, network, optimiser, {"loss": torch.tensor(1.25)}, last_step(network), config, 2)

    def resume():
        fresh = build_network(config.network, 1, config.data.crop)
        sums = {"loss": torch.zeros(())}
        restore(load(path), fresh, torch.optim.Adam(fresh.parameters()), sums, last_step(fresh))

    resume()
    return path, resume


def test_every_file_holds_the_digest_of_its_tensors_and_texts(small_checkpoint):
    path, _ = small_checkpoint
    texts = header_of(path)
    digest, tensors = texts.pop(DIGEST), load_file(path)
    assert digest_of(TensorFile(tensors, texts)) == digest
    name = next(iter(tensors))
    others = [
        TensorFile(tensors | {name: tensors[name] + 1}, texts),
        TensorFile(tensors | {name: tensors[name].view(torch.int32)}, texts),
        TensorFile(tensors | {name: tensors[name][None]}, texts),
        TensorFile({f"{key}x" if key == name else key: value for key, value in tensors.items()}, texts),
        TensorFile(tensors, texts | {"step": "3"}),
        TensorFile(tensors, {"step": texts["step"]}),
    ]
    assert len({digest, *(digest_of(other) for other in others)}) == 1 + len(others)


def test_a_flipped_bit_in_a_tensor_is_noticed(small_checkpoint):
    path, _ = small_checkpoint
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"checkpoint\.safetensors is damaged .*SHA-256.*: use another copy"):
        load(path)
    with pytest.raises(DamagedFileError):
        load_network(path)


def test_a_damaged_header_never_ends_in_another_error(tmp_path, config):
    """Each of the first 300 bytes changed: the file is refused, or is read as it was."""
    torch.manual_seed(0)
    path = tmp_path / "w.safetensors"
    save_weights(path, build_network(config.network, 1, config.data.crop), config, 1)
    whole, content, refused = load(path), path.read_bytes(), 0
    for place in range(300):
        for mask in (0x01, 0x20, 0x80):
            damaged = bytearray(content[:])
            damaged[place] ^= mask
            path.write_bytes(damaged)
            try:
                found = load(path)
            except ValueError:
                refused += 1
            else:
                assert found[:3] == whole[:3]
                assert found.tensors.keys() == whole.tensors.keys()
                assert all(torch.equal(found.tensors[name], value) for name, value in whole.tensors.items())
    assert refused > 850


@pytest.mark.parametrize("size", [0, 5, 8, 100])
def test_a_file_that_is_cut_short_is_refused(small_checkpoint, size):
    path, _ = small_checkpoint
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(DamagedFileError):
        load(path)


def test_a_damaged_name_of_the_digest_does_not_switch_it_off(small_checkpoint):
    path, _ = small_checkpoint
    path.write_bytes(path.read_bytes().replace(b'"sha256"', b'"sha257"'))
    with pytest.raises(DamagedFileError, match=r"its header has 'sha257', which nobody wrote"):
        load(path)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]},
        {"dtype": "F32", "shape": [0, 10**19], "data_offsets": [0, 0]},
        {"dtype": "F6_E2M3", "shape": [0], "data_offsets": [0, 0]},
    ],
)
def test_a_header_that_promises_more_than_there_is_takes_no_memory(tmp_path, entry):
    header = json.dumps({"x": entry, "__metadata__": {"config": "{}", "step": "1"}}).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    tracemalloc.start()
    with pytest.raises(DamagedFileError) as caught:
        load(path)
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()
    assert len(str(caught.value).splitlines()) == 1


def test_a_config_of_a_huge_network_is_refused_before_it_is_built(tmp_path, config):
    path = tmp_path / "w.safetensors"
    save_weights(path, build_network(config.network, 1, config.data.crop), config, 1)
    huge = config.override({"network.conv1_types": 10_000, "network.conv2_types": 10_000})  # 57 TB of weights
    changed(path, config=huge.to_json())
    with pytest.raises(ValueError, match="does not hold the network that its own config describes"):
        load_network(path)


@pytest.mark.parametrize(
    "step", ["-5", "1e3", "1_0", " 5", "", "٣", "9" * 13, pytest.param("9" * 5000, id="many digits")]
)
def test_a_step_that_is_no_whole_number_in_bounds_is_refused(small_checkpoint, step):
    path, _ = small_checkpoint
    changed(path, step=step)
    with pytest.raises(ValueError, match="the step must be a whole number from 0 to 1,000,000,000,000, not"):
        load(path)


def test_a_file_from_before_digests_is_read_with_one_note(small_checkpoint, caplog):
    path, resume = small_checkpoint
    changed(path)
    caplog.set_level(logging.INFO, "emcaps")
    for _ in range(3):
        resume()
    (note,) = caplog.records
    assert note.levelno == logging.INFO
    assert "holds no SHA-256" in note.getMessage()


def test_shipped_files_are_checked_without_a_note(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.INFO, "emcaps")
    for path in SHIPPED_FOLDER.glob("*.safetensors"):
        load(path)
    assert not caplog.records
    monkeypatch.setattr("emcaps.train.tensor_file.SHIPPED_FOLDER", tmp_path)
    damaged = tmp_path / "small-mono.safetensors"
    shutil.copy(SHIPPED_FOLDER / damaged.name, damaged)
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"small-mono\.safetensors is damaged .*: install emcaps again"):
        load(damaged)


def without(name):
    return lambda tensors: tensors.pop(name)


def as_integers(name):
    return lambda tensors: tensors.update({name: tensors[name].view(torch.int32)})


def flat(name):
    return lambda tensors: tensors.update({name: tensors[name].flatten()})


MOMENT = "optimiser.class_caps.beta_u.exp_avg"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without(MOMENT), f"{MOMENT} is missing"),
        (without("sums.loss"), "sums.loss is missing"),
        (without("network.class_caps.beta_u"), "network.class_caps.beta_u is missing"),
        (as_integers(MOMENT), f"{MOMENT} must be torch.float32 .*, not torch.int32"),
        (as_integers("optimiser.class_caps.beta_u.step"), "beta_u.step must be torch.float32"),
        (as_integers("network.class_caps.beta_u"), "network.class_caps.beta_u must be torch.float32"),
        (as_integers("sums.loss"), "sums.loss must be torch.float32"),
        (flat("sums.loss"), r"sums.loss must be torch.float32 \(\), not torch.float32 \(1,\)"),
        (flat("optimiser.class_caps.weight.exp_avg_sq"), "weight.exp_avg_sq must be"),
        (lambda tensors: tensors.update({"sums.more": torch.zeros(())}), "sums.more does not belong there"),
        (lambda tensors: tensors.update({"optimiser.x.step": torch.zeros(())}), "optimiser.x.step does not belong"),
        (lambda tensors: tensors.update({"other": torch.zeros(())}), "'other', which is neither weights nor"),
    ],
)
def test_restore_refuses_what_is_not_a_whole_checkpoint(small_checkpoint, damage, message):
    path, resume = small_checkpoint
    tensors = load_file(path)
    damage(tensors)
    changed(path, tensors)
    with pytest.raises(ValueError, match=message) as caught:
        resume()
    assert str(path) in str(caught.value)
    assert "use another copy" in str(caught.value)


def test_load_network_refuses_weights_that_became_integers(small_checkpoint):
    path, _ = small_checkpoint
    tensors = load_file(path)
    as_integers("network.class_caps.beta_u")(tensors)
    changed(path, tensors)
    with pytest.raises(ValueError, match=r"network\.class_caps\.beta_u must be torch\.float32"):
        load_network(path)


def test_a_folder_whose_name_is_not_utf8(tmp_path, config):
    try:
        folder = tmp_path / os.fsdecode(b"run\xff")
        folder.mkdir()
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    network, _ = trained(config, 1)
    save_weights(folder / "w.safetensors", network, config, 1)
    assert load(folder / "w.safetensors").config == config


@pytest.fixture
def save(tmp_path, config):
    """A function that saves a checkpoint of a step."""
    network = build_network(config.network, 1, config.data.crop)
    optimiser = torch.optim.Adam(network.parameters())

    def at_step(step, keep):
        kept = config.override({"train.keep_checkpoints": keep})
        path = tmp_path / "checkpoint.safetensors"
        save_checkpoint(path, network, optimiser, {}, last_step(network), kept, step)

    return at_step


def steps_in(folder):
    return [load(path).step for path in kept_checkpoints(folder / "checkpoint.safetensors")]


@pytest.mark.parametrize("keep", [1, 2, 4])
def test_the_last_checkpoints_are_kept(tmp_path, save, keep):
    for step in range(6):
        save(step, keep)
    assert steps_in(tmp_path) == [5, 4, 3, 2][:keep]
    assert len(list(tmp_path.iterdir())) == keep
    save(6, 2)
    assert steps_in(tmp_path) == [6, 5][:keep] if keep > 1 else [6]


def test_more_checkpoints_than_ten_are_in_order(tmp_path, save):
    for step in range(12):
        save(step, 12)
    assert steps_in(tmp_path) == list(range(11, -1, -1))


class Killed(BaseException):
    pass


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_a_whole_checkpoint_is_there_whenever_the_writer_is_killed(tmp_path, save, keep, monkeypatch, caplog):
    """Killed before each of the renames of a save in turn, until one has none left."""
    replace, left = os.replace, 0

    def replace_or_die(*paths):
        nonlocal left
        if left == 0:
            raise Killed
        left -= 1
        replace(*paths)

    for step in range(5):
        save(step, keep)
    monkeypatch.setattr("emcaps.files.os.replace", replace_or_die)
    for renames in range(10):
        left = renames
        try:
            save(5, keep)
            break
        except Killed:
            assert load_newest(tmp_path / "checkpoint.safetensors").step == 4
        monkeypatch.undo()
        for path in kept_checkpoints(tmp_path / "checkpoint.safetensors"):
            path.unlink()
        for step in range(5):
            save(step, keep)
        monkeypatch.setattr("emcaps.files.os.replace", replace_or_die)
    assert renames == keep
    assert load_newest(tmp_path / "checkpoint.safetensors").step == 5
    assert bool(caplog.records) == (keep > 1), "there was an instant with older ones alone"


def test_load_newest_passes_over_damaged_ones(tmp_path, save, caplog):
    path = tmp_path / "checkpoint.safetensors"
    assert load_newest(path) is None
    for step in range(3):
        save(step, 3)
    for name in ("checkpoint.safetensors", "checkpoint-1.safetensors"):
        content = bytearray((tmp_path / name).read_bytes())
        content[-1] ^= 1
        (tmp_path / name).write_bytes(content)
    found = load_newest(path)
    assert found.step == 0
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "checkpoint.safetensors is damaged" in warning
    assert "checkpoint-1.safetensors is damaged" in warning
    assert "resumes from checkpoint-2.safetensors, from step 0 on" in warning
    make_newest(found, path)
    assert steps_in(tmp_path) == [0]
    assert load_newest(path).step == 0
    assert sorted(os.listdir(tmp_path)) == ["checkpoint-damaged.safetensors", "checkpoint.safetensors"]
    make_newest(load_newest(path), path)
    assert steps_in(tmp_path) == [0], "nothing to do"
    path.write_bytes(b"")
    again = r"no other .* is whole, so use another copy of one, or train again: emcaps train --config "
    with pytest.raises(DamagedFileError, match=again):
        load_newest(path)


@pytest.mark.parametrize("name", ["checkpoint.safetensors", "weights.safetensors"])
def test_a_damaged_file_of_a_run_is_made_again_by_resuming(tmp_path, save, name):
    """As long as there is a checkpoint to resume from."""
    for step in range(2):
        save(step, 2)
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(DamagedFileError, match=r"again from a checkpoint of its run: emcaps train --resume "):
        load(tmp_path / name)
    for other in kept_checkpoints(tmp_path / "checkpoint.safetensors"):
        if other.name != name:
            other.unlink()
    with pytest.raises(DamagedFileError, match=r": use another copy$"):
        load(tmp_path / name)


def test_a_machine_without_memory_is_not_taken_for_a_damaged_file(tmp_path, save, monkeypatch):
    def no_memory(*_, **__):
        raise RuntimeError("unable to mmap 8 bytes: Cannot allocate memory (12)")

    for step in range(2):
        save(step, 2)
    monkeypatch.setattr("safetensors.torch.load", no_memory)
    with pytest.raises(RuntimeError, match="Cannot allocate memory"):
        load_newest(tmp_path / "checkpoint.safetensors")
    monkeypatch.setattr("builtins.open", fail_to_open)
    with pytest.raises(PermissionError):
        load_newest(tmp_path / "checkpoint.safetensors")


def test_what_was_read_stays_as_it_was_when_the_file_changes(small_checkpoint):
    """A mapped file would show the change, after its digest was checked, and end the process if it got shorter."""
    path, _ = small_checkpoint
    read = load(path).tensors
    wanted = {name: tensor.clone() for name, tensor in read.items()}
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in read.items())


def test_a_file_that_is_larger_than_memory_is_not_read(small_checkpoint, monkeypatch):
    path, _ = small_checkpoint
    monkeypatch.setattr("emcaps.train.tensor_file.half_of_memory", lambda: 100)
    with pytest.raises(ValueError, match=r"bytes, more than half of this machine's memory"):
        load(path)


def fail_to_open(*_, **__):
    raise PermissionError(13, "Permission denied")
