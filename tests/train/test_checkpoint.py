import pytest
import torch

from emcaps.nn import build_network
from emcaps.train.checkpoint import load, load_network, restore, save_checkpoint, save_weights


def trained(config, steps):
    torch.manual_seed(0)
    network = build_network(config.network, 1, config.data.crop)
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    go_on(network, optimiser, steps)
    return network, optimiser


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
    save_checkpoint(tmp_path / "c.safetensors", network, optimiser, sums, config, 3)

    other = build_network(config.network, 1, config.data.crop)
    other_optimiser = torch.optim.Adam(other.parameters(), lr=1e-2)
    other_sums = {"loss": torch.zeros(())}
    checkpoint = load(tmp_path / "c.safetensors")
    restore(checkpoint, other, other_optimiser, other_sums)
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
    save_checkpoint(tmp_path / "c.safetensors", network, optimiser, {}, config, 3)
    other = build_network(config.network, 1, config.data.crop)
    other_optimiser = adam(other, then)
    restore(load(tmp_path / "c.safetensors"), other, other_optimiser, {})
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
    from safetensors.torch import save_file

    with pytest.raises(FileNotFoundError, match=r"there is no file .*missing"):
        load(tmp_path / "missing")
    network, _ = trained(config, 1)
    path = tmp_path / "w.safetensors"
    save_weights(path, network, config, 1)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"w.safetensors is damaged or not a safetensors file"):
        load(path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="was not written by emcaps"):
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
