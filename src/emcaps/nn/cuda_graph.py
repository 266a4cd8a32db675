"""A network whose forward and backward pass are CUDA graphs: launched as one, without the gaps between small kernels.

`torch.cuda.make_graphed_callables` does as much, but lends out the memory of its graphs: outputs change at the next
call, gradients that are accumulated are wrong, and so are those of two calls before a backward pass. Here outputs and
gradients are copies, and what a graph cannot do raises an error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

WARM_UPS = 3
"""Calls before the capture, in which kernels are compiled and libraries set up."""


def graphed(network: nn.Module, example: Any) -> Graphed:
    """The network as a function that replays CUDA graphs, for any training loop of yours.

    Args:
        network: A module on a CUDA device, called with one argument. It must compute without waiting for the device,
            as all of `emcaps.nn` does.
        example: A batch like those to come, of the same shape, type and device: a tensor, or a RoutingOutput or other
            tuple, list or dict of tensors. One that requires a gradient gets one in every call.

    Returns:
        A function that gives what `network(batch)` gives, to the same bits, and has the same gradients. The network is
        captured as it is now, in training mode or not, with autocast or not, and without a backward pass under
        torch.no_grad(). Its weights may change in place, as optimisers and load_state_dict do. A batch with fewer
        examples, such as the last one of an epoch, goes through the network itself; any other shape raises ValueError.

    What the network does in Python, hooks included, happens at capture and not at each call. A backward pass has to
    come before the next call, and happens once. Outputs and gradients are yours: later calls do not change them.

    Examples:
        >>> import torch
        >>> from emcaps.config import NetworkConfig
        >>> from emcaps.nn import MatrixCapsNet, graphed, spread_loss
        >>> if torch.cuda.is_available():
        ...     network = MatrixCapsNet(NetworkConfig(classes=10)).cuda()
        ...     optimiser = torch.optim.Adam(network.parameters(), lr=3e-3, fused=True)
        ...     images = torch.rand(64, 1, 28, 28, device="cuda")
        ...     labels = torch.randint(10, (64,), device="cuda")
        ...     fast = graphed(network, images)
        ...     for step in range(3):
        ...         optimiser.zero_grad()
        ...         spread_loss(fast(images).activation, labels, margin=0.2).backward()
        ...         optimiser.step()
    """
    return Graphed(network, example)


class Graphed:
    """What `graphed` returns. `network` is the module that was captured, which holds the weights."""

    def __init__(self, network: nn.Module, example: Any) -> None:
        self.network = network
        examples, self._form = tree_flatten(example)
        device = _checked_device(network, examples)
        self._weights = [
            Weight(f"{name}.{key}".lstrip("."), owner, key, tensor, tensor.data_ptr(), tensor.requires_grad)
            for name, module in network.named_modules()
            for owner in (module._parameters, module._buffers)
            for key, tensor in owner.items()
            if tensor is not None
        ]
        self._modes = [(name, module, module.training) for name, module in network.named_modules()]
        self._autocast = _autocast()
        # What the graphs read: the inputs, and the gradients of the outputs.
        self._inputs = [one.detach().clone().requires_grad_(one.requires_grad) for one in examples]
        self._slopes: list[Tensor] = []
        self._parameters = [value for value in network.parameters() if value.requires_grad]
        self._learned = [one for one in (*self._inputs, *self._parameters) if one.requires_grad]
        self._learns = torch.is_grad_enabled() and bool(self._learned)
        self._captured = _capture(self._forward, self._backward, network, device)
        self._calls = 0
        self._kept = 0
        """The call whose backward pass is possible; 0 for none."""

    def __call__(self, batch: Any) -> Any:
        given, form = tree_flatten(batch)
        if form != self._form:
            raise ValueError(f"the batch must be built as the example was, {self._form}, and is {form}")
        if self._has_fewer_examples(given):
            return self.network(batch)
        self._check_batch(given)
        self._check_network()
        if self._learns and torch.is_grad_enabled():
            outputs = _Replay.apply(self, *given, *self._parameters)
        else:
            outputs = self._replay(given)
        return tree_unflatten(list(outputs), self._output_form)

    def _forward(self) -> list[Tensor]:
        """The outputs for `self._inputs`: what the first graph holds."""
        # Without a cache, because a replay has to cast the weights of its own time.
        enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        with torch.autocast("cuda", dtype, enabled, cache_enabled=False):
            outputs, self._output_form = tree_flatten(self.network(tree_unflatten(self._inputs, self._form)))
        for output in outputs:
            if not isinstance(output, Tensor):
                raise ValueError(
                    f"the network returns {type(output).__name__}, and a graph can give tensors alone: return a "
                    "tensor, or a tuple, list or dict of tensors"
                )
        return outputs

    def _backward(self, outputs: list[Tensor]) -> list[Tensor | None]:
        """The gradients of `self._learned` from `self._slopes`: what the second graph holds."""
        outputs = [output for output in outputs if output.requires_grad]
        if not outputs:
            return [None] * len(self._learned)
        if not self._slopes:
            self._slopes = [torch.zeros_like(output) for output in outputs]
        return list(torch.autograd.grad(outputs, self._learned, self._slopes, allow_unused=True))

    @torch.no_grad()
    def _replay(self, given: Sequence[Tensor]) -> list[Tensor]:
        self._calls += 1
        self._kept = self._calls
        for place, value in zip(self._inputs, given, strict=True):
            place.copy_(value)
        self._captured.replay_forward()
        return _copies(self._captured.outputs)

    def _replay_backward(self, call: int, slopes: Sequence[Tensor | None]) -> Iterator[Tensor | None]:
        """The gradients of `self._learned`; `slopes` are those of the outputs that have one, None for zeros."""
        if call != self._kept:
            why = "was done before" if call == self._calls else f"comes after call {self._calls}"
            raise RuntimeError(
                f"the backward pass of call {call} of a graphed network {why}, but a graph keeps what it needs of the "
                "last call alone and for one pass: call backward once and before the next call, or use the network "
                "itself"
            )
        self._kept = 0  # because the backward pass computes in the memory of what was kept
        for place, slope in zip(self._slopes, slopes, strict=True):
            if slope is None:
                place.zero_()
            else:
                place.copy_(slope)
        self._captured.replay_backward()
        found = iter(_copies([one for one in self._captured.gradients if one is not None]))
        return (None if one is None else next(found) for one in self._captured.gradients)

    def _has_fewer_examples(self, given: Sequence[Any]) -> bool:
        return all(
            isinstance(one, Tensor)
            and one.dim() == place.dim() > 0
            and one.shape[1:] == place.shape[1:]
            and len(one) < len(place)
            for one, place in zip(given, self._inputs, strict=True)
        )

    def _check_batch(self, given: Sequence[Any]) -> None:
        """Raise unless the graph can take this batch."""
        for number, (one, place) in enumerate(zip(given, self._inputs, strict=True)):
            what = "the batch" if len(given) == 1 else f"tensor {number} of the batch"
            if not isinstance(one, Tensor):
                raise ValueError(f"{what} must be a tensor, not {type(one).__name__}")
            if one.shape != place.shape:
                raise ValueError(
                    f"{what} has the shape {tuple(one.shape)}, but the example had {tuple(place.shape)}, and a graph "
                    "takes that shape, or fewer examples: call graphed with an example of this shape, or use the "
                    "network itself"
                )
            if (one.dtype, one.device) != (place.dtype, place.device):
                raise ValueError(
                    f"{what} is {one.dtype} on {one.device}, but the example was {place.dtype} on {place.device}: "
                    "convert the batch, or call graphed with such an example"
                )
            if one.requires_grad and not place.requires_grad and torch.is_grad_enabled():
                raise ValueError(
                    f"{what} requires a gradient, but the example did not, so the graph computes none: call graphed "
                    "with example.requires_grad_(), or detach the batch"
                )

    def _check_network(self) -> None:
        """Raise unless the network would still do what the graph does."""
        for weight in self._weights:
            tensor = weight.owner.get(weight.key)
            if tensor is not weight.tensor or tensor.data_ptr() != weight.address:
                raise ValueError(
                    f"{weight.name} has been replaced since the network was captured, and the graph reads the old one: "
                    "change it in place, as optimisers and load_state_dict do, or call graphed again"
                )
            if tensor.requires_grad != weight.required_grad:
                raise ValueError(
                    f"{weight.name}.requires_grad is {tensor.requires_grad}, but was {weight.required_grad} when the "
                    "network was captured: set it back, or call graphed again"
                )
        for name, module, training in self._modes:
            if module.training != training:
                now, then = ("training" if mode else "evaluation" for mode in (module.training, training))
                raise ValueError(
                    f"{name or 'the network'} is in {now} mode, but was in {then} mode when it was captured: call its "
                    f"{'train' if training else 'eval'}(), use the network itself, or call graphed again"
                )
        if _autocast() != self._autocast:
            raise ValueError(
                f"autocast is {_autocast()}, but was {self._autocast} when the network was captured: call it under the "
                "same torch.autocast, or call graphed again under this one"
            )
        if torch.is_grad_enabled() and self._learned and not self._learns:
            raise ValueError(
                "the network was captured under torch.no_grad(), and its outputs would have no gradients: call it "
                "under torch.no_grad(), or call graphed again with gradients enabled"
            )


class Weight(NamedTuple):
    """Where a graph reads a parameter or a buffer."""

    name: str
    owner: dict[str, Any]
    """The module's own dict of parameters or buffers."""
    key: str
    tensor: Tensor
    address: int
    required_grad: bool


class Captured(NamedTuple):
    """Two graphs, and the tensors that each of their replays writes anew."""

    replay_forward: Callable[[], None]
    outputs: list[Tensor]
    replay_backward: Callable[[], None]
    gradients: list[Tensor | None]
    """Of all that is learned; None for what the outputs do not depend on."""


class _Replay(torch.autograd.Function):
    """A call with its gradients. The parameters are arguments only because autograd has to know of them."""

    @staticmethod
    def forward(ctx: Any, graph: Graphed, *tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = graph._replay(tensors[: len(graph._inputs)])
        ctx.graph, ctx.call, ctx.learns = graph, graph._calls, [one.requires_grad for one in graph._captured.outputs]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(one for one, learns in zip(outputs, ctx.learns, strict=True) if not learns))
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        # In a backward pass gradients are enabled only if a graph of the gradients is asked for.
        if torch.is_grad_enabled():
            raise RuntimeError("a graphed network has no second derivative: use the network itself")
        graph: Graphed = ctx.graph
        used = [slope for slope, learns in zip(slopes, ctx.learns, strict=True) if learns]
        found = graph._replay_backward(ctx.call, used)
        return None, *(next(found) if one.requires_grad else None for one in (*graph._inputs, *graph._parameters))


def _checked_device(network: nn.Module, examples: Sequence[Any]) -> torch.device:
    """The CUDA device that the network and the examples are on, or ValueError."""
    named = [*network.named_parameters(), *network.named_buffers()]
    for number, one in enumerate(examples):
        if not isinstance(one, Tensor):
            raise ValueError(f"the example must be made of tensors, not {type(one).__name__}: leave that out")
        named.append(("the example" if len(examples) == 1 else f"tensor {number} of the example", one))
    if not examples:
        raise ValueError("the example holds no tensor: give graphed a batch like those to come")
    device = named[0][1].device
    for name, tensor in named:
        if tensor.device.type != "cuda":
            raise ValueError(
                f"a CUDA graph needs everything on a CUDA device, and {name} is on {tensor.device}: move network and "
                "example there with .to('cuda'); elsewhere, use the network itself"
            )
        if tensor.device != device:
            raise ValueError(
                f"{name} is on {tensor.device} and {named[0][0]} on {device}: move both to one device with .to()"
            )
    for name, value in network.named_parameters():
        if value._backward_hooks:
            raise ValueError(
                f"{name} has a hook on its gradient, which would run in the graph and after it: register it after "
                "graphed(...)"
            )
    return device


def _capture(
    forward: Callable[[], list[Tensor]],
    backward: Callable[[list[Tensor]], list[Tensor | None]],
    network: nn.Module,
    device: torch.device,
) -> Captured:
    """Graphs of both. Warm-up and capture, on a side stream as torch requires, change neither network nor generator."""
    buffers = [(buffer, buffer.detach().clone()) for buffer in network.buffers()]
    with torch.cuda.device(device):
        caller, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(caller)
        try:
            with torch.cuda.stream(side):
                try:
                    with torch.random.fork_rng([device]):
                        for _ in range(WARM_UPS - 1):
                            backward(forward())
                        with forbid_waiting():  # here, since a capture that fails is far harder to recover from
                            backward(forward())
                finally:
                    with torch.no_grad():
                        for buffer, value in buffers:
                            buffer.copy_(value)
                return _record(forward, backward, side)
        except RuntimeError as error:
            raise ValueError(
                f"the network cannot be captured in a CUDA graph ({first_reason(error)}): use the network itself, or "
                "take out of it what waits for the device, such as .item()"
            ) from error
        finally:
            caller.wait_stream(side)


def _record(
    forward: Callable[[], list[Tensor]],
    backward: Callable[[list[Tensor]], list[Tensor | None]],
    stream: torch.cuda.Stream,
) -> Captured:
    first, second, pool = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    # A thread that loads data may go on meanwhile: what it asks of the device is no error of ours.
    options: Any = {"pool": pool, "stream": stream, "capture_error_mode": "thread_local"}
    try:
        with torch.cuda.graph(first, **options):
            outputs = forward()
        with torch.cuda.graph(second, **options) if any(one.requires_grad for one in outputs) else nullcontext():
            gradients = backward(outputs)
    except BaseException:
        renew(torch.cuda.default_generators[stream.device.index])
        raise
    return Captured(first.replay, outputs, second.replay, gradients)


def _copies(tensors: list[Tensor]) -> list[Tensor]:
    """Copies of all, by one kernel."""
    copies = [torch.empty_like(tensor) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, tensors)
    return copies


def _autocast() -> str:
    return str(torch.get_autocast_dtype("cuda")) if torch.is_autocast_enabled("cuda") else "off"


@contextmanager
def forbid_waiting() -> Iterator[None]:
    """Make operations that wait for the device raise, as they would during a capture."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about operations that it cannot detect
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def renew(generator: torch.Generator) -> None:
    """Give a generator a new state: after a failed capture, the old one may refuse to draw outside of a capture."""
    generator.graphsafe_set_state(torch.Generator(generator.device).graphsafe_get_state())


def first_reason(error: BaseException) -> str:
    """The first line of the first error: the one that made a capture fail is followed by others."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error).partition("\n")[0]
