import pytest

from emcaps.config import RunConfig, preset
from patterns import write_patterns


@pytest.fixture(scope="session")
def data_folder(tmp_path_factory):
    return write_patterns(tmp_path_factory.mktemp("patterns"))


@pytest.fixture
def config() -> RunConfig:
    """A network and a run small enough for tests; the crop is the smallest that the network takes."""
    return preset("tiny").override(
        {
            "network.conv_channels": 8,
            "network.primary_types": 2,
            "network.conv1_types": 4,
            "network.conv2_types": 4,
            "data.crop": 16,
            "train.steps": 12,
            "train.batch_size": 8,
            "train.log_every": 5,
            "train.checkpoint_every": 4,
        }
    )
