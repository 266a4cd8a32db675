"""`emcaps bench`, as far as its command goes; tests/bench has the rest."""


def test_bench_prints_the_brackets_of_the_package_to_install(emcaps, monkeypatch):
    """The names of extras, as in emcaps[numba], look like markup to rich."""
    from emcaps.bench import implementations

    monkeypatch.setattr(implementations, "unavailable", lambda *_: ["numba is missing: pip install 'emcaps[numba]'"])
    options = (
        "--network",
        "tiny",
        "--types",
        2,
        "--size",
        13,
        "--batch",
        1,
        "--what",
        "forward",
        "--impl",
        "fused",
        "--impl",
        "reference",
    )
    status, out, err = emcaps("bench", *options, "--device", "cpu", "--seconds", 0.01, "--out", "[a].csv")
    assert status == 0, err
    assert "pip install 'emcaps[numba]'" in out
    assert "rows: [a].csv" in out


def test_a_cpu_has_nothing_to_profile(emcaps):
    status, _, err = emcaps("bench", "--profile", "--device", "cpu")
    assert status == 1
    assert err.startswith("emcaps: --profile is about the kernels of an NVIDIA GPU, not about cpu: use --device cuda")
