import subprocess

import torch

import emcaps
from emcaps import provenance


def test_environment_names_what_numbers_depend_on():
    found = provenance.environment(torch.device("cpu"))
    assert found.keys() >= {"emcaps", "commit", "python", "torch", "numpy", "platform", "device", "threads", "started"}
    assert (found["emcaps"], found["torch"]) == (emcaps.__version__, torch.__version__)
    assert found["device"].startswith("cpu, ")


def test_a_git_that_does_not_answer_is_no_reason_to_stop(monkeypatch):
    def wait(*arguments):
        raise subprocess.TimeoutExpired(arguments, 10)

    monkeypatch.delenv("EMCAPS_COMMIT", raising=False)
    monkeypatch.setattr(provenance, "_git", wait)
    assert provenance.commit() is None


def test_commit_where_the_file_belongs_to_no_checkout(monkeypatch, tmp_path):
    """Installed below somebody else's checkout: theirs is not our commit."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    monkeypatch.delenv("EMCAPS_COMMIT", raising=False)
    assert provenance.commit() is None
    monkeypatch.setenv("EMCAPS_COMMIT", "abc")
    assert provenance.commit() == "abc"
