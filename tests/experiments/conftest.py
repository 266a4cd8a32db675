import pytest

from patterns import write_patterns


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """The folder of a small data set, named toys."""
    return write_patterns(tmp_path_factory.mktemp("patterns"))
