"""Which implementations of EM routing can run here, and which one "auto" takes."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os

import torch

from emcaps.config import IMPLEMENTATIONS
from emcaps.names import check_name

logger = logging.getLogger("emcaps")


def choose_implementation(impl: str, device: torch.device | None = None) -> str:
    """The implementation that runs: `impl` itself if it can (on that device), else a ValueError with the reasons.

    Only "auto" chooses: the fused kernels on the devices that they are made for, else the reference.
    """
    check_name("impl", impl, IMPLEMENTATIONS)
    if impl == "auto":
        fused = {"cuda": "triton", "cpu": "numba"}.get(device.type if device is not None else "cpu", "reference")
        choice = "reference" if unavailable(fused, device) else fused
        if not torch.compiler.is_compiling():
            log_choice(choice)
            if choice == "reference" and fused == "numba":
                suggest_numba()
        return choice
    reasons = unavailable(impl, device)
    if reasons:
        raise ValueError(f"impl={impl!r} cannot run: {'; '.join(reasons)}: use impl='auto' or 'reference'")
    return impl


def unavailable(impl: str, device: torch.device | None = None) -> list[str]:
    """Every reason why an implementation cannot run (on that device); an empty list for one that can."""
    if impl == "reference":
        return []
    if impl == "numba":
        reasons: list[str] = _numba_problems()
        if device is not None and device.type != "cpu":
            reasons.append(f"its kernels need tensors on a CPU, not on {device}")
        return reasons
    reasons = _triton_problems()
    if device is not None and device.type == "cuda":
        reasons += _missing_gpu_features(device.index)
    # Triton's interpreter runs the kernels on a CPU: slowly, for tests.
    elif device is not None and os.environ.get("TRITON_INTERPRET") != "1":
        reasons.append(f"its kernels need tensors on a CUDA device, not on {device}")
    return reasons


# torch.compile cannot trace what the next three ask, and need not: the answers stay the same for a whole process.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _numba_problems() -> list[str]:
    problem = _numba_import_problem()
    return [] if problem is None else [problem]


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _triton_problems() -> list[str]:
    version = _triton_version()
    if version is None:
        return ["the package triton is not installed (it comes with torch for CUDA on Linux)"]
    if _first_numbers(version) < (3, 6):
        return [f"its kernels need triton 3.6 or newer, not {version} (it comes with torch 2.10)"]
    return []


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _missing_gpu_features(index: int | None) -> list[str]:
    if torch.version.hip is not None:
        return ["its kernels were made for NVIDIA's GPUs, and this torch is for AMD's"]
    capability = _capability(index)
    if capability < (7, 0):
        return [f"its kernels need a GPU of compute capability 7.0 or more, not {capability[0]}.{capability[1]}"]
    return []


def has_asynchronous_copies(index: int | None) -> bool:
    """Whether a GPU can copy to shared memory while it computes, as sweeps through stages do."""
    return os.environ.get("TRITON_INTERPRET") == "1" or _capability(index) >= (8, 0)


@functools.cache
def _capability(index: int | None) -> tuple[int, int]:
    """The compute capability of a GPU. To ask for it at every call would take longer than a kernel."""
    return torch.cuda.get_device_capability(index)


@functools.cache
def _first_numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


@functools.cache
def _numba_import_problem() -> str | None:
    """Why numba cannot be imported, or None. Only an import can tell: numba may not support the NumPy beside it."""
    if importlib.util.find_spec("numba") is None:
        return "the package numba is not installed: pip install numba"
    try:
        importlib.import_module("numba")
    except ImportError as error:
        return f"the package numba cannot be imported ({error})"
    return None


@functools.cache
def _triton_version() -> str | None:
    """The version of Triton, or None without it. The module itself knows: its package has more than one name."""
    if importlib.util.find_spec("triton") is None:
        return None
    version: str = importlib.import_module("triton").__version__
    return version


@functools.cache
def suggest_numba() -> None:
    """Say once per process what would make routing fast on a CPU."""
    logger.warning("EM routing is far faster on a CPU with numba: pip install numba")


@functools.cache
def log_choice(impl: str) -> None:
    """Say once per process what "auto" runs."""
    logger.info("impl='auto' runs the %s implementation of EM routing", impl)
