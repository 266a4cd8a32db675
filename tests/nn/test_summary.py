from emcaps.config import preset
from emcaps.nn.summary import summarise


def test_summarise_small_is_table_1_of_the_paper():
    rows = [
        (row.layer, row.details, row.output_shape, row.max_data, row.mean_data and round(row.mean_data, 2))
        for row in summarise(preset("small").network, 1, 32)
    ]
    assert rows == [
        ("input", "", (32, 32, 1), None, None),
        ("relu_conv1", "K=5, S=2, Ch=64", (16, 16, 64), None, None),
        ("primary_caps", "K=1, S=1, Ch=8", (16, 16, 8), None, None),
        ("conv_caps1", "K=3, S=2, O=16", (7, 7, 16), 72, 2.61),
        ("conv_caps2", "K=3, S=1, O=16", (5, 5, 16), 144, 1.96),
        ("class_caps", "flatten, O=5", (1, 1, 5), 400, 80.0),
    ]


def test_max_data_counts_no_padding():
    """The kernel of 3x3 reads at most 2x2 children of 4 types on the second grid, and 3x3 of 2 types on the first."""
    network = preset("tiny").override({"network.layers": "4:3:2:1,4:3:1:2", "network.primary_types": 2}).network
    rows = {row.layer: row for row in summarise(network, 1, 8)}
    assert rows["conv_caps1"].output_shape == (2, 2, 4)
    assert [rows[name].max_data for name in ("conv_caps1", "conv_caps2", "class_caps")] == [18, 16, 64]


def test_summarise_counts_every_parameter():
    assert sum(row.parameters for row in summarise(preset("small").network, 2, 32)) == 68_754
    assert sum(row.parameters for row in summarise(preset("cnn").network, 2, 32)) == 4_253_349


def test_summarise_cnn_has_no_routing_data():
    rows = summarise(preset("cnn").network, 2, 32)
    assert [row.layer for row in rows] == ["input", "conv1", "conv2", "hidden", "output"]
    assert all(row.max_data is None and row.mean_data is None for row in rows)
    assert rows[2].output_shape == (8, 8, 64)
