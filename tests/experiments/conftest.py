import numpy as np
import pytest

from emcaps.data.arrays import parts_of_arrays
from emcaps.data.builtin import NAMES
from emcaps.data.prepared import prepared_path, save_prepared
from patterns import write_patterns


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The folder of a small data set, named toys."""
    return write_patterns(tmp_path_factory.mktemp("patterns"))


@pytest.fixture
def digits(tmp_path):
    """A folder of prepared images like MNIST's, two of each digit."""
    images = np.random.default_rng(0).integers(256, size=(20, 28, 28), dtype=np.uint8)
    labels = np.arange(20) % 10
    parts = parts_of_arrays(images, labels, images, labels, names=NAMES["mnist"])
    save_prepared({prepared_path("mnist", part, tmp_path): found for part, found in parts.items()})
    return tmp_path
