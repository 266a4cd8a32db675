"""What the fused implementations ask about the mode in which PyTorch runs them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import is_in_torch_dispatch_mode


def nobody_watches(inputs: tuple[Tensor, ...]) -> bool:
    """No compiler, tracer or other mode that has to see operators, and no tensors that have their own idea of them."""
    return (
        not torch.compiler.is_compiling()
        and not is_in_torch_dispatch_mode()
        and all(type(tensor) in (Tensor, Parameter) for tensor in inputs)
    )


def refuse_second_derivatives() -> None:
    """In a backward pass: gradients are enabled there only if a graph of the gradients is asked for."""
    if torch.is_grad_enabled():
        raise RuntimeError("the fused kernels have no second derivative: use impl='reference'")
