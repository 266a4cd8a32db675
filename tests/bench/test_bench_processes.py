from pathlib import Path

import pytest

from emcaps.bench.processes import WAYS, Way


@pytest.mark.parametrize(("device", "processes"), [("cpu", [None, None, "1", "2"]), ("cuda", [None, "1"])])
def test_every_way_trains_the_same_run(device, processes):
    commands = [way.command(Path("data"), Path("run"), device) for way in WAYS[device]]
    assert len({tuple(command[command.index("train") :]) for command in commands}) == 1
    assert all(command[command.index("--device") + 1] == device for command in commands)
    option = "--nproc-per-node"
    assert [command[command.index(option) + 1] if option in command else None for command in commands] == processes


def test_a_way_says_what_it_is():
    assert str(Way(0, 2)) == "without torchrun, 2 threads"
    assert str(Way(2, 1)) == "torchrun, 2 processes of 1 thread"
