"""Processes that work together as torchrun would start them, without its seconds of start: forked from a server that
has loaded torch. They are given a minute, so that no test can hang."""

import os
import signal
import socket
import sys
import time
import traceback
from contextlib import redirect_stdout
from multiprocessing import get_context

import torch

from emcaps.cli import main
from emcaps.config import RunConfig
from emcaps.data.splits import load_tested
from emcaps.train import distributed, load_network, loop
from emcaps.train.evaluate import evaluate_split, write_evaluations

LIMIT = 60


def together(count, work, *arguments):
    """Call work(*arguments) in `count` processes; raise if one of them fails."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["emcaps.train"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    _run([context.Process(target=_rank, args=(number, count, port, work, arguments)) for number in range(count)])


def by_itself(work, *arguments):
    """Call work(*arguments) in one process that knows nothing of others, started as those of `together` are."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["emcaps.train"])
    _run([context.Process(target=_plain, args=(work, arguments))])


def _run(processes):
    try:
        for process in processes:
            process.start()
        deadline = time.monotonic() + LIMIT
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        codes = [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()
    if any(code != 0 for code in codes):
        raise RuntimeError(f"the processes ended with {codes}; None is one that took more than {LIMIT} s")


def _plain(work, arguments):
    torch.set_num_threads(1)
    work(*arguments)


def train_plainly(config, folder, data_folder):
    loop.train(RunConfig.from_json(config), folder, device="cpu", data_folder=data_folder)


def _rank(number, count, port, work, arguments):
    os.environ |= {
        "TORCHELASTIC_RUN_ID": "test",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }
    torch.set_num_threads(1)
    try:
        work(*arguments)
    except BaseException:
        traceback.print_exc()
        raise


def train_rank(config, folder, data_folder, resume=False, interrupt_at=None, broken=False, device="cpu"):
    """Train, and leave this process's weights beside the run. The last process gets SIGTERM at a step, if asked to."""
    make_step, networks = loop.make_step, []
    last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1

    def remembering(network, *others):
        networks.append(network)
        advance = make_step(network, *others)

        def step(number):
            if last and number == interrupt_at:
                os.kill(os.getpid(), signal.SIGTERM)
            advance(number)

        return step

    loop.make_step = remembering
    if broken:
        distributed.reduce_step = lambda _network, loss, right: (loss, right)
    result = loop.train(
        RunConfig.from_json(config), folder, device=device, data_folder=data_folder, resume=resume, on_progress=no_other
    )
    assert result.complete == (interrupt_at is None)
    torch.save(networks[0].state_dict(), f"{folder}-rank{distributed.rank()}.pt")


def evaluate_rank(weights, out, data_folder):
    """Evaluate together, and leave what this process found, and on how many images it called the network."""
    device, seen = torch.device("cpu"), []
    distributed.join(device)
    network, config, step = load_network(weights)
    network.register_forward_hook(lambda _module, inputs, _out: seen.append(len(inputs[0])))
    found = evaluate_split(network, load_tested(config.data, data_folder), config, device)
    write_evaluations(out / f"rank{distributed.rank()}.json", found, step, 1, by_instance=True)
    (out / f"rank{distributed.rank()}.txt").write_text(str(sum(seen)))


def command_rank(folder, *words):
    """Run `emcaps WORDS` in this folder, and leave what this process prints there."""
    os.chdir(folder)
    sys.argv = ["emcaps", *map(str, words)]
    with open(f"out{os.environ['RANK']}", "w") as out, redirect_stdout(out):
        try:
            main()
        except SystemExit as stop:
            if stop.code:
                raise


def no_other(progress):
    assert distributed.is_main()
