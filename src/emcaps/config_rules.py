"""What settings may be: rules for numbers and choices, and values that are read from text."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, Literal

from emcaps.names import check_name, shown

LARGEST_NUMBER = 1e30
"""Above this, products of settings leave the range of float32."""
MOST_STEPS = 10**12
LARGEST_WHOLE = {
    "network": 10_000,
    "data": 10_000,
    "train": MOST_STEPS,
    "train.batch_size": 1_000_000,
    "train.seed": 2**64 - 1,
    "train.keep_checkpoints": 1000,
}
"""The largest whole numbers, by section or setting: beyond what any machine holds, but small enough to say so."""

NUMBER_RULES: dict[str, Callable[[float], bool]] = {
    "at least 1": lambda value: value >= 1,
    "at least 1 without network.layers": lambda value: value >= 1,
    "at least 2": lambda value: value >= 2,
    "at least 8": lambda value: value >= 8,
    "zero or more": lambda value: value >= 0,
    "0 to 4": lambda value: 0 <= value <= 4,
    "0 to 180": lambda value: 0 <= value <= 180,
    "finite": math.isfinite,
    "positive and finite": lambda value: 0 < value < math.inf,
    "zero or more, and finite": lambda value: 0 <= value < math.inf,
    "a share, 0 to 1": lambda value: 0 <= value <= 1,
}


def require(condition: bool, value: object, rule: str) -> None:
    if not condition:
        raise ValueError(f"{rule}, not {shown(value)}")


def check_sizes(config: object, section: str) -> None:
    """Raise ValueError for a number that is so large that it can only be a mistake, and would overflow somewhere."""
    for key, value in vars(config).items():
        name = f"{section}.{key}"
        if isinstance(value, int):
            most: float = LARGEST_WHOLE.get(name, LARGEST_WHOLE[section])
            require(value <= most, value, f"{name} must be at most {most:,}")
        elif isinstance(value, float) and math.isfinite(value):  # what is not finite gets a message of its own
            require(value <= LARGEST_NUMBER, value, f"{name} must be at most {LARGEST_NUMBER}")
            require(value >= -LARGEST_NUMBER, value, f"{name} must be at least -{LARGEST_NUMBER}")


def check_numbers(config: object, section: str, rule: str, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        require(NUMBER_RULES[rule](value), value, f"{section}.{name} must be {rule}")


def check_types(config: object, section: str, types: Mapping[str, Any]) -> None:
    """Raise ValueError for a setting that should be a number, whole or not, or true or false, and is none."""
    kinds = {int: (Integral, "a whole number"), float: (Real, "a number"), bool: (bool, "True or False")}
    for name, wanted in types.items():
        if name.startswith(f"{section}.") and wanted in kinds:
            kind, rule = kinds[wanted]
            value = getattr(config, name.removeprefix(f"{section}."))
            fits = isinstance(value, kind) and (wanted is bool or not isinstance(value, bool))
            require(fits, value, f"{name} must be {rule}")


def check_choices(config: object, section: str, types: Mapping[str, Any]) -> None:
    """Raise ValueError unless every setting of a Literal type has one of that type's values."""
    for name, wanted in types.items():
        if name.startswith(f"{section}.") and (choices := choices_of(wanted)):
            check_name(name, getattr(config, name.removeprefix(f"{section}.")), choices)


def check_texts(config: object, section: str, name: str, remedy: str) -> None:
    """Raise ValueError unless the setting is a tuple of texts: a text by itself would be read letter by letter."""
    value = getattr(config, name)
    if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError(f"{section}.{name} must be a list of texts, in Python a tuple, not {shown(value)}: {remedy}")


def choices_of(wanted: Any) -> tuple[str, ...]:
    """The values of a Literal type; none for any other type."""
    return typing.get_args(wanted) if typing.get_origin(wanted) is Literal else ()


def parse(name: str, value: Any, wanted: Any) -> Any:
    """The value of a setting such as "train.steps", read from a string if need be and checked against its type."""
    if choices := choices_of(wanted):
        check_name(name, value, choices)
        return value
    if name == "network.layers":  # which NetworkConfig reads
        return value
    if typing.get_origin(wanted) is tuple:
        return tuple(value) if isinstance(value, list) or value == "" else value  # the config checks what is in it
    if isinstance(value, str) and wanted is not str:
        try:
            value = wanted(value.replace("_", ""))
        except ValueError:
            kind = "a whole number" if wanted is int else "a number"
            raise ValueError(f"{name} must be {kind}, not {shown(value)}") from None
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            value = float(value)
        except OverflowError:
            raise ValueError(f"{name} must be at most {LARGEST_NUMBER}, not {shown(value)}") from None
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise ValueError(f"{name} must be of type {wanted.__name__}, not {shown(value)}")
    return value
