from pathlib import Path

from emcaps.bench.processes import WAYS, Way


def test_every_way_trains_the_same_run():
    commands = [way.command(Path("data"), Path("run")) for way in WAYS]
    assert len({tuple(command[command.index("train") :]) for command in commands}) == 1
    assert [("torch.distributed.run" in command) for command in commands] == [False, False, True, True]
    assert commands[-1][commands[-1].index("--nproc-per-node") + 1] == "2"


def test_a_way_says_what_it_is():
    assert str(Way(0, 2)) == "without torchrun, 2 threads"
    assert str(Way(2, 1)) == "torchrun, 2 processes of 1 thread"
