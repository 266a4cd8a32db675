"""Errors of the public functions are ValueErrors that name the argument, the value and the rule."""

import math

import pytest
import torch

from emcaps import class_routing, class_routing_trace, conv_routing, conv_routing_trace
from routing.cases import class_inputs, conv_inputs

CONV = conv_inputs(batch=2, grid=(5, 4), kernel=(3, 2), child_types=3, parent_types=2)
CLASS = class_inputs(batch=2, grid=(5, 4), child_types=3, parent_types=2)
LAYERS = pytest.mark.parametrize(
    ("routing", "inputs"),
    [
        pytest.param(conv_routing, CONV, id="conv"),
        pytest.param(class_routing, CLASS, id="class"),
        pytest.param(conv_routing_trace, CONV, id="conv trace"),
        pytest.param(class_routing_trace, CLASS, id="class trace"),
    ],
)


def message(routing, inputs, **options):
    """The text of the ValueError, which must be one line of at least five words."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011, the callers look at the text
        routing(*inputs, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text.split()) >= 5
    return text


SHARED_SHAPES = [
    ("pose", (2, 5, 4, 3, 16)),
    ("pose", (5, 4, 3, 4, 4)),
    ("pose", (2, 5, 4, 3, 4, 3)),
    ("pose", (2, 5, 4, 3, 3, 4)),
    ("activation", (2, 5, 5, 3)),
    ("activation", (2, 4, 4, 3)),
    ("activation", (1, 5, 4, 3)),
    ("activation", (2, 5, 4, 2)),
    ("activation", (2, 5, 4, 3, 1)),
    ("activation", (2, 5, 4)),
    ("beta_u", (3,)),
    ("beta_u", (1,)),
    ("beta_u", ()),
    ("beta_u", (2, 1)),
    ("beta_a", (3,)),
    ("beta_a", (1,)),
    ("beta_a", (1, 2)),
]
CONV_SHAPES = [("weight", (3, 2, 3, 2, 16)), ("weight", (3, 2, 4, 2, 4, 4)), ("weight", (3, 2, 3, 2, 4, 5))]
CLASS_SHAPES = [("weight", (3, 2, 16)), ("weight", (4, 2, 4, 4)), ("weight", (3, 2, 5, 4))]


@pytest.mark.parametrize(
    ("routing", "inputs", "name", "shape"),
    [
        pytest.param(routing, inputs, name, shape, id=f"{routing.__name__} {name} {shape}")
        for routing, inputs, own in (
            (conv_routing, CONV, [*CONV_SHAPES, ("weight", (3, 2, 4, 4))]),
            (class_routing, CLASS, [*CLASS_SHAPES, ("weight", (3, 2, 3, 2, 4, 4))]),
        )
        for name, shape in SHARED_SHAPES + own
    ],
)
def test_shapes(routing, inputs, name, shape):
    text = message(routing, inputs._replace(**{name: torch.ones(shape, dtype=torch.float64)}))
    assert name in text
    assert str(shape) in text
    assert "must" in text


@pytest.mark.parametrize("kernel", [(6, 2), (3, 5), (6, 5)])
def test_kernel_larger_than_the_grid(kernel):
    inputs = CONV._replace(weight=torch.ones(*kernel, 3, 2, 4, 4, dtype=torch.float64))
    text = message(conv_routing, inputs)
    assert "kernel" in text
    assert all(str(k) in text for k in kernel)
    assert "5" in text
    assert "4" in text


@LAYERS
@pytest.mark.parametrize("name", ["pose", "activation", "weight", "beta_u", "beta_a"])
def test_mixed_dtypes(routing, inputs, name):
    text = message(routing, inputs._replace(**{name: getattr(inputs, name).float()}))
    assert name in text
    assert "float32" in text
    assert "float64" in text


@LAYERS
@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.complex64])
def test_dtypes_that_cannot_be_routed(routing, inputs, dtype):
    text = message(routing, inputs.to(dtype))
    assert str(dtype).removeprefix("torch.") in text
    assert "float32" in text


@LAYERS
@pytest.mark.parametrize("name", ["pose", "activation", "weight", "beta_u", "beta_a"])
def test_mixed_devices(routing, inputs, name):
    text = message(routing, inputs._replace(**{name: getattr(inputs, name).to("meta")}))
    assert name in text
    assert "meta" in text
    assert "cpu" in text


@LAYERS
@pytest.mark.parametrize("iterations", [0, -1, 2.5, True, "3", None])
def test_iterations(routing, inputs, iterations):
    text = message(routing, inputs, iterations=iterations)
    assert "iterations" in text
    assert repr(iterations) in text


@LAYERS
@pytest.mark.parametrize("name", ["final_lambda", "variance_floor"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0])
def test_final_lambda_and_variance_floor(routing, inputs, name, value):
    text = message(routing, inputs, **{name: value})
    assert name in text
    assert repr(value) in text


@LAYERS
@pytest.mark.parametrize("name", ["final_lambda", "variance_floor"])
@pytest.mark.parametrize("value", ["1", None])
def test_final_lambda_and_variance_floor_that_are_no_numbers(routing, inputs, name, value):
    text = message(routing, inputs, **{name: value})
    assert name in text
    assert repr(value) in text


@pytest.mark.parametrize("routing", [conv_routing, conv_routing_trace])
@pytest.mark.parametrize("stride", [0, -1, 1.5, True, (1, 0), (0, 1), (1,), (1, 1, 1), (1, 1.5), "2", None])
def test_stride(routing, stride):
    text = message(routing, CONV, stride=stride)
    assert "stride" in text
    assert repr(stride) in text


@LAYERS
@pytest.mark.parametrize(
    ("name", "value", "nearest", "allowed"),
    [
        ("data_scaling", "means", "mean", ("mean", "none")),
        ("competition", "type", "types", ("all", "types")),
        ("impl", "refrence", "reference", ("auto", "reference", "triton", "numba")),
        ("impl", "tritn", "triton", ("auto", "reference", "triton", "numba")),
    ],
)
def test_unknown_names_suggest_the_nearest(routing, inputs, name, value, nearest, allowed):
    text = message(routing, inputs, **{name: value})
    assert repr(value) in text
    assert f"did you mean {nearest!r}" in text
    assert all(option in text for option in allowed)


@LAYERS
@pytest.mark.parametrize(("impl", "device"), [("triton", "cpu"), ("triton", "meta"), ("numba", "meta")])
def test_an_explicit_choice_runs_or_says_why_not(routing, inputs, impl, device, monkeypatch):
    """Without Triton's interpreter no kernel of Triton can run off a GPU, and there is no fallback to another."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    text = message(routing, [tensor.to(device) for tensor in inputs], impl=impl)
    assert f"impl={impl!r} cannot run" in text
    assert "'auto'" in text
    if impl == "triton" and "trace" not in routing.__name__:
        assert f"need tensors on a CUDA device, not on {device}" in text


@pytest.mark.parametrize(("trace", "inputs"), [(conv_routing_trace, CONV), (class_routing_trace, CLASS)])
def test_kernels_keep_no_trace(trace, inputs, monkeypatch):
    """An explicit choice of a kernel raises an error, even where the kernel could run."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    text = message(trace, inputs, impl="triton")
    assert "only the reference keeps every iteration" in text


@LAYERS
def test_options_are_named(routing, inputs):
    with pytest.raises(TypeError):
        routing(*inputs, 1)
    with pytest.raises(TypeError, match="iteration"):
        routing(*inputs, iteration=3)


def test_class_routing_has_no_stride():
    with pytest.raises(TypeError, match="stride"):
        class_routing(*CLASS, stride=1)


@LAYERS
def test_what_was_accepted_before_makes_nothing_else_acceptable(routing, inputs):
    """Checks are remembered by shapes, types and settings: one that differs, or is only equal, is still refused."""
    routing(*inputs, iterations=1, final_lambda=1.0)
    assert "same dtype" in message(routing, inputs._replace(weight=inputs.weight.float()), iterations=1)
    assert "same device" in message(routing, inputs._replace(beta_a=inputs.beta_a.to("meta")), iterations=1)
    assert "beta_u must be (2,)" in message(routing, inputs._replace(beta_u=inputs.beta_u[:1]), iterations=1)
    for value in (True, 1.0, [1], torch.tensor(1)):
        assert f"not {value!r}" in message(routing, inputs, iterations=value)
    assert "final_lambda must be positive" in message(routing, inputs, final_lambda=True)
    if "conv" in routing.__name__:
        routing(*inputs, iterations=1, stride=(1, 1))
        for value in ((True, 1), (1.0, 1), [1, True]):
            assert "stride must be a whole number" in message(routing, inputs, iterations=1, stride=value)
