import os
import stat

import pytest
import torch

from emcaps.bench import profiler
from emcaps.bench.cases import BACKWARD, Case
from emcaps.bench.profiler import ISSUE, TIME, profile, profile_table, read_kernels, run_profile

CASE = Case("small", 16, 32, 64, 2, BACKWARD)
GPU = torch.device("cuda")
TABLE = f"""==PROF== Connected to process 7
==PROF== Disconnected from process 7
"ID","Kernel Name","{TIME}","{ISSUE}"
"","","ns","%"
"0","m_step","3,000","60"
"1","m_step","9,000","80"
"2","void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(T3)","6,000","10"
"""


@pytest.fixture
def ncu(tmp_path, monkeypatch):
    """A profiler that answers as it is told to, and keeps the arguments that it was given."""

    def answer(text, status=0):
        program = tmp_path / "ncu"
        program.write_text(
            f"#!/bin/sh\nprintf '%s\\n' \"$@\" >{tmp_path}/asked\ncat <<'TEXT'\n{text}\nTEXT\nexit {status}\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        return tmp_path / "asked"

    return answer


def test_kernels_are_added_up_by_name_and_weighed_by_their_time():
    m_step, reduction = read_kernels(TABLE)
    assert (m_step.name, reduction.name) == ("m_step", "at::native::reduce_kernel")
    assert m_step.launches == pytest.approx(2 / 3)  # of three batches
    assert m_step.microseconds == pytest.approx(12 / 3)
    assert m_step.issue == pytest.approx((3 * 60 + 9 * 80) / 12)
    assert reduction.microseconds == pytest.approx(2)


def test_the_table_ends_with_all_kernels():
    table = profile_table(CASE, read_kernels(TABLE))
    cells = [list(column.cells) for column in table.columns]
    assert cells[0] == ["m_step", "at::native::reduce_kernel", "all"]
    assert cells[2] == ["4.0", "2.0", "6.0"]
    assert cells[3] == ["66.7", "33.3", "100.0"]
    assert cells[4] == ["75", "10", "53"]


def test_the_profiler_is_asked_for_both_metrics_of_this_case(ncu):
    asked = ncu(TABLE)
    assert [kernel.name for kernel in profile(CASE, GPU)] == ["m_step", "at::native::reduce_kernel"]
    arguments = asked.read_text().splitlines()
    assert f"{TIME},{ISSUE}" in arguments
    assert arguments[arguments.index("--clock-control") + 1] == "none"
    assert arguments[-3:-1] == ["emcaps.bench.profiler", "cuda"]
    assert '"network": "small"' in arguments[-1]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "==ERROR== ERR_NVGPUCTRPERM - The user\ndoes not",
            "the driver does not let this user read the GPU's counters",
        ),
        ("==PROF== hello\n==WARNING== No kernels were profiled.\n", "==WARNING== No kernels were profiled."),
        ("Traceback\nRuntimeError: no GPU", "RuntimeError: no GPU"),
        ("", "ncu said nothing"),
    ],
)
def test_why_nothing_was_profiled_is_one_line(ncu, said, reason):
    ncu(said, status=1)
    with pytest.raises(ValueError, match=r"^nothing was profiled: ") as error:
        profile(CASE, GPU)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_profiler_is_told(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match=r"nothing was profiled: ncu .* is not on the PATH"):
        profile(CASE, GPU)


def test_every_case_gets_a_table(monkeypatch, capsys):
    from rich.console import Console

    monkeypatch.setattr(profiler, "implementations", lambda wanted, device: ([], []))
    monkeypatch.setattr(profiler, "profile", lambda case, device: read_kernels(TABLE))
    run_profile([CASE, CASE], Console(width=100), GPU)
    assert capsys.readouterr().out.count("small, 32x32, batch 64, 2 iterations: forward+backward, by kernel") == 2
