"""One environment: made, tried and removed. The result is a record for results/compat/.

Nothing here imports emcaps or what it needs: a bare Python runs this, and the environment runs emcaps.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, NamedTuple

from compat.environments import EXTRAS, ROOT, TEST_TOOLS, Environment

PACKAGES = ("torch", "triton", "numpy", "numba", "safetensors", "typer", "rich", "pillow", "matplotlib", "tensorboard")
PACKAGES_OF_ONNX = ("onnx", "onnxruntime", "onnxscript")
COMMANDS = (
    "emcaps --help",
    "emcaps info",
    "emcaps describe small",
)
"""Run in an empty folder, as a new user would."""
EXPORTS = ("emcaps export small-stereo --pt2 small.pt2", "emcaps export small-stereo --onnx small.onnx")
"""They need torch 2.8; an older one is refused."""
TESTS = (
    "routing/test_brute_force.py",
    "routing/test_class_routing.py",
    "routing/test_conv_routing.py",
    "routing/test_traces.py",
    "routing/test_numba.py",
    "nn/test_layers.py",
    "nn/test_losses.py",
    "train/test_loop.py",
    "train/test_checkpoint.py",
    "test_weights.py",
)
"""Routing beside the brute force, kernels, layers, short trainings with exact resume, the package's weights."""
TESTS_OF_GPU_KERNELS = ("routing/test_triton_layer.py", "routing/test_triton_operators.py")
"""In Triton's interpreter. The kernels need triton 3.6; with an older one, routing on a GPU is the reference."""
TOO_LONG = ("routing/test_conv_routing.py::test_gradcheck",)
INSTALL_LIMIT_SECONDS = COMMAND_LIMIT_SECONDS = TESTS_LIMIT_SECONDS = 3600
"""Against what hangs; a busy machine may take long."""


class Counts(NamedTuple):
    passed: int
    failed: int
    skipped: int
    failures: list[str]
    """A line for each: the test and the first line of what it says."""


def try_environment(environment: Environment, wheel: Path) -> dict[str, Any]:
    """Install the wheel with the environment's versions, run the commands and tests, and tell what became of them."""
    with tempfile.TemporaryDirectory(prefix="emcaps-compat-") as folder:
        record: dict[str, Any] = {
            "name": environment.name,
            "pins": list(environment.pins),
            "python": platform.python_version(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
            "commit": _commit(),
            "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "versions": {},
            "passed": 0,
            "failed": 0,
            "skipped": 0,
            "failures": [],
        }
        python = Path(folder, "env/bin/python")
        try:
            _run([sys.executable, "-m", "venv", folder + "/env"], Path(folder), INSTALL_LIMIT_SECONDS)
            started = time.monotonic()
            _install(python, environment, wheel)
            record["install_seconds"] = round(time.monotonic() - started)
        except subprocess.SubprocessError as error:
            return record | {"failures": [f"installing: {_last_line(error)}"], "failed": 1}
        record["versions"] = _versions(python)
        started = time.monotonic()
        commands, tests = chosen_commands(record["versions"]), chosen_tests(record["versions"])
        for counts in (_run_commands(python, commands), _run_tests(python, tests)):
            for kind in ("passed", "failed", "skipped", "failures"):
                record[kind] += getattr(counts, kind)
        return record | {"seconds": round(time.monotonic() - started)}


def build_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "venv", str(folder / "build")]
    _run(command, folder, INSTALL_LIMIT_SECONDS)
    pip = [str(folder / "build/bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT)], folder, INSTALL_LIMIT_SECONDS)
    (wheel,) = folder.glob("*.whl")
    return wheel


def count_tests(junit: str) -> Counts:
    """What pytest's report in JUnit's format says."""
    passed, skipped, failures = 0, 0, []
    for case in ElementTree.fromstring(junit).iter("testcase"):
        bad = [*case.iter("failure"), *case.iter("error")]
        if bad:
            told = (bad[0].get("message") or "").strip().splitlines() or ["no message"]
            failures.append(f"{case.get('classname')}::{case.get('name')}: {told[0]}"[:300])
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return Counts(passed, len(failures), skipped, failures)


def _install(python: Path, environment: Environment, wheel: Path) -> None:
    pins = wheel.parent / "pins.txt"
    pins.write_text("\n".join(environment.pins) + "\n", encoding="utf-8")
    wanted = [f"{wheel}[{','.join(EXTRAS)}]", *TEST_TOOLS]
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install", "--no-compile"]
    if uv := shutil.which("uv"):  # it keeps unpacked packages, of which torch needs gigabytes, from one to the next
        pip = [uv, "pip", "install", "--python", str(python)]
    _run([*pip, "--quiet", "--constraint", str(pins), *wanted], wheel.parent, INSTALL_LIMIT_SECONDS)


def _run_commands(python: Path, commands: tuple[str, ...]) -> Counts:
    failures = []
    with tempfile.TemporaryDirectory(prefix="emcaps-compat-") as folder:
        for command in commands:
            program, *arguments = command.split()
            try:
                _run([str(python.with_name(program)), *arguments], Path(folder), COMMAND_LIMIT_SECONDS)
            except subprocess.SubprocessError as error:
                failures.append(f"{command}: {_last_line(error)}")
    return Counts(len(commands) - len(failures), len(failures), 0, failures)


def chosen_commands(versions: dict[str, str]) -> tuple[str, ...]:
    """All commands above that this torch can run."""
    return (*COMMANDS, *(EXPORTS if _major_and_minor(versions, "torch") >= (2, 8) else ()))


def chosen_tests(versions: dict[str, str]) -> tuple[str, ...]:
    """All tests above, without those of the GPU kernels if these cannot run."""
    return (*TESTS, *(TESTS_OF_GPU_KERNELS if _major_and_minor(versions, "triton") >= (3, 6) else ()))


def _major_and_minor(versions: dict[str, str], package: str) -> tuple[int, ...]:
    return tuple(int(part) for part in versions.get(package, "0.0").split(".")[:2])


def _run_tests(python: Path, names: tuple[str, ...]) -> Counts:
    report = python.parents[2] / "junit.xml"
    options = f"-m pytest -p no:cacheprovider --continue-on-collection-errors --timeout=1200 --junitxml={report}"
    command = [str(python), *options.split()]
    command += [f"tests/{name}" for name in names] + [f"--deselect=tests/{name}" for name in TOO_LONG]
    try:
        _run(command, ROOT, TESTS_LIMIT_SECONDS)
    except subprocess.SubprocessError as error:
        if not report.exists():
            return Counts(0, 1, 0, [f"pytest: {_last_line(error)}"])
    return count_tests(report.read_text(encoding="utf-8"))


def _versions(python: Path) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, json, sys\n"
        "there = {d.metadata['Name'].lower(): d.version for d in m.distributions()}\n"
        "print(json.dumps({n: there[n] for n in sys.argv[1:] if n in there}))"
    )
    found: dict[str, str] = json.loads(_run([str(python), "-c", code, *PACKAGES, *PACKAGES_OF_ONNX], ROOT, 60))
    return found


def _run(command: list[str], folder: Path, limit: float) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TRITON_INTERPRET")}
    kept |= {"EMCAPS_DATA": str(folder / "data"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=folder, env=kept, check=True, capture_output=True, text=True, timeout=limit)
    return done.stdout


def _last_line(error: subprocess.SubprocessError) -> str:
    """The last line that a command printed, or what ended it."""
    told = [text for text in (getattr(error, "stderr", None), getattr(error, "stdout", None)) if text]
    lines = [line for text in told for line in str(text).strip().splitlines()[-1:]]
    return (lines[0] if lines else str(error))[:300]


def _commit() -> str | None:
    try:
        head = _run(["git", "rev-parse", "HEAD"], ROOT, 60).strip()
        return head + ("+changes" if _run(["git", "status", "--porcelain", "src", "tests"], ROOT, 60) else "")
    except (OSError, subprocess.SubprocessError):  # no git, or no checkout
        return None
