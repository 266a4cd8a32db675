import numpy as np
import pytest
import torch

from emcaps.config import preset
from emcaps.nn import MatrixCapsNet
from emcaps.report.pictures import draw_contact_sheet, draw_routing
from patterns import pattern_examples


def size_of(path):
    """Width and height from the header of a PNG."""
    header = path.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    return tuple(np.frombuffer(header[16:24], ">u4").tolist())


def test_contact_sheet_has_a_row_for_each_category_and_a_column_for_each_instance(tmp_path):
    parts = {"train": pattern_examples((4, 6), 3, seed=0), "test": pattern_examples((0,), 2, seed=1)}
    draw_contact_sheet(parts, tmp_path / "sheet.png")
    assert size_of(tmp_path / "sheet.png") == (2 * (3 * 48 + 2 * 2), 2 * (5 * 48 + 4 * 2))


@pytest.mark.parametrize("change", [{"network.iterations": 1}, {"network.iterations": 3}, {"network.layers": "4:5:3"}])
def test_draw_routing_leaves_a_picture_and_the_network_alone(tmp_path, change):
    torch.manual_seed(0)
    network = MatrixCapsNet(preset("tiny").override(change).network, 2)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    draw_routing(network, torch.randn(2, 2, 32, 32), [0, 3], tmp_path / "routing.png")
    assert size_of(tmp_path / "routing.png")[0] > 500
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name
