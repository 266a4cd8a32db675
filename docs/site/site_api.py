"""The pages of the API reference. mkdocstrings fills them with signatures and docstrings."""

from __future__ import annotations

INTRODUCTIONS = {
    "emcaps": "`import emcaps` loads PyTorch only when a name of it is first used. It also has the routing functions "
    "with the types of their results, which stand with [emcaps.routing](routing.md), and [emcaps.debug](debug.md).",
    "emcaps.nn": "Capsule layers for your own model, the whole network, CUDA graphs of it, the CNN baseline and the "
    "losses.",
    "emcaps.config": "All settings of a run, with their defaults. `--set network.iterations=3` on the "
    "[command line](../commands.md) changes one of them.",
    "emcaps.routing": "EM routing as functions, which have no parameters of their own. The "
    "[definition](../definition.md) says what they compute.",
    "emcaps.train": "The training loop and its parts, evaluation, and networks read from a run's folder.",
    "emcaps.data": "Data sets from files, folders and arrays; splits, crops and augmentation.",
    "emcaps.analysis": "What routing does in a network.",
    "emcaps.debug": "Checks of the numbers that routing reads and gives. They are off unless the variable "
    "`EMCAPS_DEBUG=1` or `checks()` switches them on.",
}
NAMES = {
    "emcaps": ("load", "crops_for"),
    "emcaps.nn": (
        "PrimaryCaps",
        "ConvCaps",
        "ClassCaps",
        "SetCaps",
        "MatrixCapsNet",
        "NetworkTrace",
        "Predictions",
        "BaselineCNN",
        "build_network",
        "graphed",
        "spread_loss",
        "margin_loss",
        "cross_entropy_loss",
    ),
    "emcaps.config": ("preset", "RunConfig", "NetworkConfig", "LayerConfig", "DataConfig", "TrainConfig"),
    "emcaps.routing": (
        "conv_routing",
        "class_routing",
        "set_routing",
        "grid_routing",
        "graph_routing",
        "conv_routing_trace",
        "class_routing_trace",
        "set_routing_trace",
        "graph_routing_trace",
        "RoutingOutput",
        "RoutingTrace",
        "RoutingStep",
        "spatial_routing_map",
        "window_edges",
        "WindowEdges",
        "parent_grid",
        "mean_data",
        "max_data",
        "routing_lambda",
    ),
    "emcaps.train": (
        "train",
        "TrainResult",
        "Progress",
        "NotFiniteError",
        "evaluate",
        "Evaluation",
        "load_network",
        "make_optimiser",
        "make_step",
        "learning_rate",
        "spread_margin",
    ),
    "emcaps.data": (
        "splits.load_split",
        "splits.make_split",
        "splits.Split",
        "prepared.Examples",
        "prepared.load_prepared",
        "prepared.save_prepared",
        "prepared.data_folder",
        "sources.read_source",
        "sources.Options",
        "sources.Source",
        "tensors.to_tensors",
        "crops.evaluation_crops",
        "augment.augment",
        "toy_set.write_toys",
        "download.fetch_smallnorb",
        "smallnorb.prepare_smallnorb",
        "builtin.prepare_builtin",
        "matrix_format.read_matrix",
        "idx.read_idx",
    ),
    "emcaps.analysis": (
        "warning_signs.warning_signs",
        "warning_signs.LayerSigns",
        "sharpness.measure",
        "flow.image_shares",
    ),
    "emcaps.debug": ("checks", "BadNumberError"),
}
"""What a page describes, in its order; a name may begin with that of a module below the page's own."""


def api_pages() -> dict[str, str]:
    """The Markdown of every page, by its path on the site."""
    pages = {}
    for module, names in NAMES.items():
        described = "\n".join(f"::: {module}.{name}\n" for name in names)
        path = f"api/{module.rpartition('.')[2]}.md"
        pages[path] = f"# {module}\n\n{INTRODUCTIONS[module]}\n\n{described}"
    return pages
