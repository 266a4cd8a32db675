"""For the API reference: a default that the code takes from routing/settings.py is shown as its value."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import griffe

# Run as a file: importing it as emcaps.routing.settings would load PyTorch.
_SETTINGS = runpy.run_path(str(Path(__file__).resolve().parents[2] / "src/emcaps/routing/settings.py"))
VALUES: dict[str, Any] = {f"DEFAULTS.{name}": value for name, value in _SETTINGS["DEFAULTS"]._asdict().items()}
VALUES["DEFAULT_IMPL"] = _SETTINGS["DEFAULT_IMPL"]


class ShownDefaults(griffe.Extension):
    """Puts the values in; mkdocs.yml names this file, and griffe finds the class."""

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        for parameter in func.parameters:
            if str(parameter.default) in VALUES:
                parameter.default = repr(VALUES[str(parameter.default)])
