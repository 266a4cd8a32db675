import json
import logging

import pytest
import torch

from emcaps.data.prepared import fingerprint
from emcaps.train.run_folder import (
    append_metrics,
    continue_run,
    is_data_of,
    read_config,
    read_evaluation,
    read_metrics,
    start_run,
)
from patterns import pattern_examples

CPU = torch.device("cpu")
DATA = {"train": "0123", "test": "4567"}


def test_start_run_records_config_and_environment(tmp_path, config):
    start_run(tmp_path / "run", config, CPU, DATA)
    assert read_config(tmp_path / "run") == config
    found = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert found["torch"] == torch.__version__
    assert found["data"] == DATA
    assert found.keys() >= {"emcaps", "commit", "python", "numpy", "device", "threads", "started"}


def test_start_run_refuses_a_folder_that_holds_one(tmp_path, config):
    start_run(tmp_path, config, CPU, DATA)
    with pytest.raises(ValueError, match="holds a run already: resume it with emcaps train --resume"):
        start_run(tmp_path, config, CPU, DATA)


def test_read_config_of_something_else(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a run folder"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"network": ')
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        read_config(tmp_path)


def test_metrics_are_forgotten_after_a_step_and_a_cut_line_is_left_out(tmp_path, config):
    start_run(tmp_path, config, CPU, DATA)
    for step in (5, 10, 15):
        append_metrics(tmp_path, {"step": step})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 2')
    assert [row["step"] for row in read_metrics(tmp_path)] == [5, 10, 15]
    continue_run(tmp_path, config, CPU, DATA, 10)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 5}\n{"step": 10}\n'


def test_a_run_that_cannot_go_on_is_left_as_it_was(tmp_path, config):
    start_run(tmp_path, config, CPU, DATA)
    (tmp_path / "metrics.jsonl").write_text('{"step": 5}\nrubbish\n{"step": 10}\n')
    for name in ("weights.safetensors", "evaluation.json"):
        (tmp_path / name).touch()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2 is damaged"):
        continue_run(tmp_path, config.override({"train.steps": 1000}), CPU, DATA, 5)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[1]",
        "{}",
        '{"step": 5, "test": {}}',
        '{"test": {"accuracy": 0.5}}',
        '{"step": 5, "test": {"accuracy": NaN}}',
        pytest.param('{"step": 5, "test": {"accuracy": 1' + 400 * "0" + "}}", id="many digits"),
        pytest.param(100_000 * "[", id="nested"),
    ],
)
def test_an_evaluation_that_is_damaged_is_named(tmp_path, content):
    path = tmp_path / "evaluation.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"evaluation\.json is damaged \(.*\): restore it from another copy"):
        read_evaluation(path)


@pytest.mark.parametrize(
    "line",
    [
        '{"foo": 1}',
        "3",
        "\udcff",
        "",
        '{"step": true}',
        '{"step": -5}',
        '{"step": 10000000000000}',
        '{"step": 5, "seconds": "long"}',
        '{"step": 5, "loss": null}',
        pytest.param('{"step": 5, "seconds": 1' + 400 * "0" + "}", id="many digits"),
        pytest.param(100_000 * "[", id="nested"),
    ],
)
def test_metrics_with_a_line_that_is_no_row(tmp_path, line):
    text = f'{line}\n{{"step": 10}}\n'
    (tmp_path / "metrics.jsonl").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 1 is damaged"):
        read_metrics(tmp_path)


def test_metrics_damaged_in_the_middle(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 5}\nrubbish\n{"step": 10}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2 is damaged"):
        read_metrics(tmp_path)


@pytest.mark.parametrize("content", ["[1]", "{", b"\xff\xfe", "", pytest.param(100_000 * "[", id="nested")])
def test_read_config_that_is_damaged(tmp_path, content):
    (tmp_path / "config.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        read_config(tmp_path)


def test_a_config_with_a_setting_that_is_not_known_is_named(tmp_path, config):
    settings = json.loads(config.to_json())
    settings["train"]["speed"] = 3
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"config\.json: unknown setting 'train\.speed'.* version of emcaps that"):
        read_config(tmp_path)


def test_is_data_of_compares_the_parts_that_are_there(tmp_path, config):
    train, test, other = (pattern_examples((4, 6), views=1, seed=seed) for seed in range(3))
    assert is_data_of(tmp_path, {"test": test}), "a run that wrote nothing down"
    start_run(tmp_path, config, CPU, {"train": fingerprint(train), "test": fingerprint(test)})
    assert is_data_of(tmp_path, {"test": test})
    assert is_data_of(tmp_path, {"train": train, "test": test})
    assert is_data_of(tmp_path, {"test": test, "familiar": other}), "of which no record is kept"
    assert not is_data_of(tmp_path, {"test": other})
    assert not is_data_of(tmp_path, {"train": other, "test": test})


def test_a_whole_last_line_that_is_damaged_is_not_taken_for_a_cut_one(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 5}\n{"step": "10"}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2 is damaged"):
        read_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").write_text('{"step": 5}\n{"step": 10}')
    assert [row["step"] for row in read_metrics(tmp_path)] == [5, 10]


@pytest.mark.parametrize(
    ("steps", "at", "message"),
    [
        ((5, 10, 12), 12, None),
        ((5, 10, 15), 10, None),
        ((5,), 9, None),
        ((), 4, None),
        ((10, 12), 12, "lacks 1 of the 2 rows up to step 12, the first that of step 5"),
        ((5, 20), 20, "lacks 2 of the 4 rows up to step 20, the first that of step 10"),
        ((), 10**12, "lacks 200000000000 of the 200000000000 rows"),
    ],
)
def test_rows_that_are_lost_are_told_of_when_a_run_resumes(tmp_path, config, caplog, steps, at, message):
    """The config asks for one every five steps, and a run that ended at step 12 has one of that step."""
    start_run(tmp_path, config, CPU, DATA)
    for step in steps:
        append_metrics(tmp_path, {"step": step, "loss": 0.5})
    append_metrics(tmp_path, {"step": 5, "test_accuracy": 0.5})
    continue_run(tmp_path, config, CPU, DATA, at)
    found = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(found) == (message is not None)
    assert message is None or f"metrics.jsonl {message}" in found[0]


def test_another_number_of_threads_is_told_of_when_a_run_resumes_on_a_cpu(tmp_path, config, caplog):
    start_run(tmp_path, config, CPU, DATA)
    continue_run(tmp_path, config, CPU, DATA, 0)
    assert not caplog.records
    path = tmp_path / "environment.json"
    found, now = json.loads(path.read_text()), torch.get_num_threads()
    for device in ("NVIDIA H200", "cpu, 8 cores"):
        path.write_text(json.dumps(found | {"threads": now + 1, "device": device}))
        continue_run(tmp_path, config, CPU, DATA, 0)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert f"started with {now + 1} threads and resumes with {now}" in warning
    assert f"set OMP_NUM_THREADS={now + 1}" in warning


def test_what_a_killed_writer_left_is_removed_when_the_run_resumes(tmp_path, config):
    start_run(tmp_path, config, CPU, DATA)
    for name in (".checkpoint.safetensors.abc.part", ".metrics.jsonl.x1_.part", "my.part", ".notes"):
        (tmp_path / name).touch()
    continue_run(tmp_path, config, CPU, DATA, 0)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"config.json", "environment.json", "metrics.jsonl", "my.part", ".notes"}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"resumed": {}}, "'resumed' must be a list"),
        ({"resumed": None}, "'resumed' must be a list"),
        ({"threads": "four"}, "'threads' must be a whole number"),
        ({"data": [1]}, "'data' must be a table"),
    ],
)
def test_an_environment_with_wrong_types_is_named(tmp_path, config, damage, message):
    start_run(tmp_path, config, CPU, DATA)
    path = tmp_path / "environment.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | damage))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ValueError, match=rf"environment\.json is damaged \({message}\): .* or delete it"):
        continue_run(tmp_path, config, CPU, DATA, 0)
    with pytest.raises(ValueError, match=r"environment\.json is damaged"):
        is_data_of(tmp_path, {})
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
