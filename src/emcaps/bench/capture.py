"""Work captured as a CUDA graph: recorded once, then replayed without launching each kernel from the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch

Result = TypeVar("Result")
WARM_UP = 3


class Captured(NamedTuple, Generic[Result]):
    graph: torch.cuda.CUDAGraph
    result: Result
    """The tensors that every replay writes anew."""
    work: Callable[[], Result]
    """Kept for its inputs and weights, which the graph reads where they lie but does not own."""

    def replay(self) -> None:
        self.graph.replay()


def capture(work: Callable[[], Result], device: torch.device) -> Captured[Result]:
    """Record `work` after warming it up on a side stream, as torch requires. It must always use the same tensors."""
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            work()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return Captured(graph, result, work)
