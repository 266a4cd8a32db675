"""Rows of an experiment whose networks and runs are small enough for tests."""

from emcaps.config import preset

SHORT = {
    "network.conv_channels": 8,
    "network.primary_types": 2,
    "network.conv1_types": 3,
    "network.conv2_types": 3,
    "data.crop": 16,  # which leaves room for 13 crops
    "train.steps": 4,
    "train.batch_size": 8,
    "train.eval_every": 2,
    "train.log_every": 2,
    "train.checkpoint_every": 2,
}
ROWS = {
    name: preset("tiny").override(SHORT | {"network.iterations": iterations})
    for name, iterations in (("one", 1), ("two", 2))
}
