"""All settings with their values and a line of meaning each, which is read from the texts below them in config.py."""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import re
import typing
from typing import NamedTuple

from emcaps.config import SECTIONS, RunConfig
from emcaps.config_rules import choices_of
from emcaps.names import shown


class Setting(NamedTuple):
    section: str
    name: str
    """With its section, as --set takes it."""
    value: str
    meaning: str


def settings_of(config: RunConfig) -> list[Setting]:
    """Every setting with its value in this config."""
    found = []
    for section, kind in SECTIONS.items():
        meanings = _meanings(kind)
        for key, wanted in typing.get_type_hints(kind).items():
            value, meaning, choices = getattr(getattr(config, section), key), meanings[key], choices_of(wanted)
            if not all(f'"{choice}"' in meaning for choice in choices):
                meaning = f"{meaning} One of {', '.join(choices)}."
            found.append(Setting(section, f"{section}.{key}", shown_value(value), meaning))
    return found


def _meanings(kind: type) -> dict[str, str]:
    """The first sentence of the text below each field of a section."""
    (section,) = ast.parse(inspect.getsource(kind)).body
    found = {}
    for pair in itertools.pairwise(typing.cast("ast.ClassDef", section).body):
        match pair:
            case ast.AnnAssign(target=ast.Name(id=key)), ast.Expr(value=ast.Constant(value=str(text))):
                found[key] = re.split(r'(?<=\.) (?=[A-Z"])', " ".join(text.split()))[0]
    return found


def shown_value(value: object) -> str:
    """A setting's value, at most one line long."""
    if isinstance(value, str):
        return value if len(value) <= 200 else shown(value)
    if isinstance(value, tuple | list):
        return shown(list(value)) if value else "none"
    return "none" if value is None else json.dumps(value) if isinstance(value, bool | dict) else f"{value}"
