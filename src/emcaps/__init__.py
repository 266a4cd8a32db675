"""Matrix capsules with EM routing: exact, tested against its definition.

    from emcaps import conv_routing, class_routing, set_routing
    from emcaps.nn import ConvCaps, ClassCaps, SetCaps, MatrixCapsNet

The names below are loaded when they are first used, so that the command line answers before torch is imported.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from emcaps.version import __version__

if TYPE_CHECKING:
    from emcaps import debug
    from emcaps.routing import (
        RoutingOutput,
        RoutingStep,
        RoutingTrace,
        class_routing,
        class_routing_trace,
        conv_routing,
        conv_routing_trace,
        graph_routing,
        graph_routing_trace,
        grid_routing,
        set_routing,
        set_routing_trace,
        spatial_routing_map,
        window_edges,
    )
    from emcaps.weights import crops_for, load

__all__ = [
    "RoutingOutput",
    "RoutingStep",
    "RoutingTrace",
    "__version__",
    "class_routing",
    "class_routing_trace",
    "conv_routing",
    "conv_routing_trace",
    "crops_for",
    "debug",
    "graph_routing",
    "graph_routing_trace",
    "grid_routing",
    "load",
    "set_routing",
    "set_routing_trace",
    "spatial_routing_map",
    "window_edges",
]


def __getattr__(name: str) -> Any:
    if name == "debug":
        return importlib.import_module("emcaps.debug")
    if name in ("crops_for", "load"):
        return getattr(importlib.import_module("emcaps.weights"), name)
    if name in __all__:
        return getattr(importlib.import_module("emcaps.routing"), name)
    raise AttributeError(f"module 'emcaps' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
