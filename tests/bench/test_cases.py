import pytest

from emcaps.bench.cases import (
    BACKWARD,
    COMPILED,
    FORWARD,
    FUSED_GRAPH,
    IMPLEMENTATIONS,
    NAMES,
    REFERENCE,
    STEP,
    SWEEPS,
    TASKS,
    Case,
    choose_cases,
    grid,
    page_rows,
    suite,
)


def test_headline_is_every_task_of_three_networks():
    cases = suite("headline")
    assert {(case.network, case.iterations) for case in cases} == {("small", 2), ("small", 3), ("full", 3)}
    assert {case.what for case in cases} == set(TASKS)
    assert {(case.batch, case.size) for case in cases} == {(64, 32)}
    assert len(cases) == 9


def test_quick_is_every_task_of_the_smallest_network_at_two_batches():
    assert suite("quick") == [Case("tiny", 8, 32, batch, 2, what) for batch in (1, 8) for what in TASKS]


@pytest.mark.parametrize("axis", SWEEPS)
def test_a_sweep_changes_one_axis_and_goes_through_the_headline(axis):
    cases = suite(axis)
    for network in ("small", "full"):
        mine = [case for case in cases if case.network == network]
        assert tuple(getattr(case, axis) for case in mine) == SWEEPS[axis]
        for other in {"types", "size", "batch", "iterations", "what"} - {axis}:
            assert len({getattr(case, other) for case in mine}) == 1
        assert len(set(mine) & set(suite("headline"))) == (2 if (axis, network) == ("iterations", "small") else 1)
    assert {case.what for case in cases} == {BACKWARD}
    assert {case.what for case in suite(axis, (STEP,))} == {STEP}


def test_all_is_the_headline_and_every_sweep_without_doubles():
    parts = {case for name in ("headline", *SWEEPS) for case in suite(name)}
    assert len(suite("all")) == len(parts)
    assert set(suite("all")) == parts


def test_pages_are_the_headline_and_more_each_with_its_implementations():
    rows = page_rows()
    assert suite("pages") == list(rows)
    assert suite("pages", (FORWARD,)) == [case for case in rows if case.what == FORWARD]
    assert set(suite("headline")) <= set(rows)
    assert {name for names in rows.values() for name in names} <= {*IMPLEMENTATIONS, *NAMES}
    assert all(len(names) == len(set(names)) for names in rows.values())


def test_pages_time_training_and_evaluation_at_three_batches():
    rows = page_rows()
    for network, rounds in (("small", 2), ("full", 3)):
        for batch in (1024, 4096):
            for case in grid((network,), (batch,), (rounds,), tasks=(FORWARD, STEP)):
                assert rows[case] == (FUSED_GRAPH,)


def test_pages_leave_out_what_takes_long():
    """Compiling takes ten seconds a row, and the reference has no memory for large batches of the full network."""
    compiled = [case for case, names in page_rows().items() if COMPILED in names]
    assert [(case.network, case.iterations, case.batch) for case in compiled] == [
        ("small", 2, 64),
        ("small", 3, 64),
        ("full", 3, 64),
    ]
    assert {case.what for case in compiled} == {BACKWARD}
    slow = [case for case, names in page_rows().items() if REFERENCE in names and case.network == "full"]
    assert max(case.batch for case in slow) == 64


def test_grid_is_every_combination_and_scales_the_types():
    cases = grid(("small", "full"), batches=(1, 2), types=(8, 64), tasks=("forward",))
    assert len(cases) == 8
    config = cases[1].config("triton")
    assert (config.primary_types, config.conv1_types, config.conv2_types) == (8, 8, 8)
    assert config.impl == "triton"
    assert {case.types for case in grid(("small", "full"))} == {16, 32}


def test_case_in_words():
    assert str(Case("small", 16, 32, 64, 1, BACKWARD)) == "small, 32x32, batch 64, 1 iteration"
    assert str(Case("full", 8, 48, 1, 3, BACKWARD)) == "full, 8 types, 48x48, batch 1, 3 iterations"


@pytest.mark.parametrize(
    ("name", "axes", "message"),
    [
        ("headlin", {}, "unknown suite 'headlin': did you mean 'headline'?"),
        ("batch", {"sizes": [32]}, "--suite batch is a list of cases: leave out the options that make a grid"),
        (None, {"networks": ["cnn"]}, "unknown network 'cnn'"),
        (None, {"sizes": [0]}, "--size must be at least 1, not 0"),
        (None, {"types": [0]}, "--types must be at least 1, not 0"),
        (None, {"batches": [0]}, "--batch must be at least 1, not 0"),
    ],
)
def test_mistakes_are_told(name, axes, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        choose_cases(name, axes, ())
