"""Kernels that are compiled for a GPU, on a machine without one too.

A process that interprets Triton cannot compile it. So a test file that is run as a program compiles its kernels, and
prints how many there were.
"""

import os
import subprocess
import sys
from pathlib import Path


def count_compiled(file, cache):
    """The number of kernels that this test file, run as a program, compiles into an empty folder."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.getenv("PYTHONPATH")])])
    run = subprocess.run([sys.executable, file], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return int(run.stdout.splitlines()[-1])


class Device:
    """The part of a driver that Triton uses before it launches anything."""

    def __init__(self, capability):
        self.capability = capability

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self):
        return self.capability

    def get_current_stream(self, device):
        return 0


def compile_for(capabilities, launch_all):
    """Compile what `launch_all()` would launch on a device of each compute capability, as 90; gives the binaries."""
    from triton.runtime import JITFunction
    from triton.runtime.driver import driver

    compiled, run = [], JITFunction.run

    def compile_only(kernel, *arguments, grid, warmup, **options):
        compiled.append(run(kernel, *arguments, grid=grid, warmup=True, **options).asm["cubin"])

    JITFunction.run = compile_only
    for capability in capabilities:
        driver.set_active(Device(capability))
        launch_all()
    return compiled
