"""The kernels compile for a GPU, on a machine without one too. The interpreter cannot show this.

Run as a program, this file compiles the kernels of a forward and a backward pass. It prints for each the registers and
the bytes of stack that a thread uses, its shared memory, and the layout of the tensors that it sums over a warp. This
needs a process of its own, because a process that interprets Triton cannot compile it.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

OTHERS = {"pack", "assign", "assignment_gradients", "input_gradient", "gather_gradients", "sum_parameters"}
STAGED = {"staged_m_step", "staged_log_joints", "staged_moments", "staged_share_gradients"}


@pytest.mark.parametrize("staged", [True, False])
def test_kernels_compile_for_a_gpu_and_keep_everything_in_registers(staged, tmp_path):
    pytest.importorskip("triton.backends.nvidia")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # an empty cache, so that everything is compiled now
    command = [sys.executable, __file__, str(tmp_path), *["staged"][: int(staged)]]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    kernels = json.loads(run.stdout)
    names = [name for name, *_ in kernels]
    assert set(names) == OTHERS | (STAGED if staged else {"m_step", "parent_gradient"})
    assert names.count("staged_m_step" if staged else "m_step") == 2, "the first iteration's and the last one's"
    for name, registers, stack, shared, _ in kernels:
        assert 0 < registers <= 255, name
        assert stack <= 64, f"{name} spills {stack} bytes of registers to memory"
        assert shared <= 48 * 1024, f"{name} needs more shared memory than a kernel gets without asking"
    # The sums over a warp assume that a warp's lanes are the 32 images of one child type.
    ((name, layout),) = ((name, layout) for name, *_, layout in kernels if layout)
    assert name == "input_gradient"
    assert "sizePerThread = [1, 1], threadsPerWarp = [1, 32]" in layout


def compile_launches(folder: Path, staged: bool) -> list[tuple[str, int, int, int, str | None]]:
    import torch
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.runtime import JITFunction
    from triton.runtime.driver import driver

    from emcaps.routing.triton_kernels import launch
    from emcaps.routing.triton_kernels.operators import route_and_keep, route_backward

    class Hopper:
        """The part of a driver that Triton uses before it launches anything."""

        def get_current_target(self):
            return GPUTarget("cuda", 90, 32)

        def get_current_device(self):
            return 0

        def get_current_stream(self, device):
            return 0

    cuobjdump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    compiled = []
    run = JITFunction.run

    def compile_only(kernel, *arguments, grid, warmup, **options):
        binary = run(kernel, *arguments, grid=grid, warmup=True, **options)
        file = folder / f"{len(compiled)}.cubin"
        file.write_bytes(binary.asm["cubin"])
        usage = subprocess.run([cuobjdump, "-res-usage", file], capture_output=True, text=True, check=True).stdout
        found = (int(re.search(rf"{what}:(\d+)", usage)[1]) for what in ("REG", "STACK", "SHARED"))
        registers, stack, of_stages = found
        shared = max(0, of_stages - 1024) + binary.metadata.shared  # the first 1024 bytes are the system's
        exchange = re.search(r"shfl.*-> tensor<\w+, (#\w+)>", binary.asm["ttgir"])
        layout = exchange and re.search(rf"^{exchange[1]} = (.*)", binary.asm["ttgir"], re.MULTILINE)[1]
        compiled.append((kernel.__name__, registers, stack, shared, layout))
        return binary

    driver.set_active(Hopper())
    JITFunction.run = compile_only
    launch.has_asynchronous_copies = lambda device: staged
    inputs = [torch.empty(shape) for shape in ((64, 16, 16, 8, 4, 4), (64, 16, 16, 8), (3, 3, 8, 16, 4, 4), 16, 16)]
    pose, activation, *kept = route_and_keep(*inputs, [2, 2], False, 2, 1.0, 1e-4, 1.0)
    shapes = list(inputs[0].shape), list(inputs[2].shape)
    route_backward(pose, activation, *kept, *shapes, [2, 2], False, 2, 1.0, 1.0)
    return compiled


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        found = compile_launches(Path(sys.argv[1]), staged="staged" in sys.argv[2:])
    print(json.dumps(found))
