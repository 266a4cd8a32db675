"""The parts of `make compat` that need no environments: what is tried, and how its result is read."""

import subprocess

import pytest

from compat import trial
from compat.environments import EXTRAS, ROOT, Environment, environments, exact_versions, lower_bounds
from compat.trial import (
    COMMANDS,
    EXPORTS,
    TESTS,
    TESTS_OF_GPU_KERNELS,
    TOO_LONG,
    chosen_commands,
    chosen_tests,
    count_tests,
)


def test_every_environment_has_a_name_of_its_own():
    names = [environment.name for environment in environments()]
    assert len(set(names)) == len(names)
    assert "python3.13-newest" in names


def test_the_lowest_environment_is_what_the_project_allows():
    (lowest,) = [environment for environment in environments() if environment.what == "lowest"]
    assert {pin.split("==")[0] for pin in lowest.pins} >= {"torch", "numpy", "numba", "pillow", "onnx"}
    extras = "".join(f'{extra} = ["{extra}-package>=3"]\n' for extra in EXTRAS)
    project = f'[project]\ndependencies = ["torch>=2.5"]\n[project.optional-dependencies]\n{extras}'
    assert lower_bounds(project) == ("torch==2.5", *(f"{extra}-package==3" for extra in EXTRAS))
    with pytest.raises(ValueError, match=r"must be NAME>=VERSION.*torch~=2\.5"):
        lower_bounds(project.replace("torch>=", "torch~="))


def test_remarks_of_constraints_are_left_out():
    assert exact_versions("# why\n\ntorch==2.13.0\nnumpy==2.3.5\n") == ("torch==2.13.0", "numpy==2.3.5")


def test_the_tests_that_are_run_exist():
    for name in (*TESTS, *TESTS_OF_GPU_KERNELS, *TOO_LONG):
        file, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / "tests" / file).read_text(encoding="utf-8") or not function
        assert (ROOT / "tests" / file).is_file()


def test_old_versions_of_triton_leave_out_its_kernels():
    assert chosen_tests({"triton": "3.6.0"}) == chosen_tests({"triton": "3.10.0"}) == (*TESTS, *TESTS_OF_GPU_KERNELS)
    assert chosen_tests({"triton": "3.5.1"}) == chosen_tests({}) == TESTS


def test_old_versions_of_torch_leave_out_the_exports():
    assert chosen_commands({"torch": "2.13.0+cpu"}) == (*COMMANDS, *EXPORTS)
    assert chosen_commands({"torch": "2.6.0"}) == COMMANDS


def test_a_report_is_counted():
    counts = count_tests(
        '<testsuites><testsuite><testcase classname="a" name="good"/>'
        '<testcase classname="a" name="later"><skipped message="no GPU"/></testcase>'
        '<testcase classname="a" name="bad"><failure message="first line&#10;second"/></testcase>'
        '<testcase classname="b" name="broken"><error message=""/></testcase></testsuite></testsuites>'
    )
    assert counts == (1, 2, 1, ["a::bad: first line", "b::broken: no message"])


def test_an_environment_that_cannot_be_installed_is_a_failure(tmp_path, monkeypatch):
    def fail(command, *_):
        raise subprocess.CalledProcessError(1, command, "", "much\nERROR: no such version\n")

    monkeypatch.setattr(trial, "_run", fail)
    record = trial.try_environment(Environment("3.11", "none"), tmp_path / "emcaps.whl")
    assert (record["passed"], record["failed"], record["versions"]) == (0, 1, {})
    assert record["failures"] == ["installing: ERROR: no such version"]
