"""EM routing: the public functions, what they return, and the geometry of layers. README.md lists the files."""

from emcaps.routing.dispatch import (
    class_routing,
    class_routing_trace,
    conv_routing,
    conv_routing_trace,
    set_routing,
    set_routing_trace,
)
from emcaps.routing.geometry import max_data, mean_data, parent_grid, spatial_routing_map
from emcaps.routing.graphs import WindowEdges, graph_routing, graph_routing_trace, grid_routing, window_edges
from emcaps.routing.results import RoutingOutput, RoutingStep, RoutingTrace
from emcaps.routing.settings import routing_lambda

__all__ = [
    "RoutingOutput",
    "RoutingStep",
    "RoutingTrace",
    "WindowEdges",
    "class_routing",
    "class_routing_trace",
    "conv_routing",
    "conv_routing_trace",
    "graph_routing",
    "graph_routing_trace",
    "grid_routing",
    "max_data",
    "mean_data",
    "parent_grid",
    "routing_lambda",
    "set_routing",
    "set_routing_trace",
    "spatial_routing_map",
    "window_edges",
]
