"""Imports go one way: each package imports those before it in ORDER, and no two modules need each other.

Imports inside functions count, too. `emcaps/__init__.py` loads its public names when they are first used, so it stands
above routing and weights.
"""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"
ORDER = [
    "names",
    "version",
    "files",
    "config_rules",
    "config_layers",
    "config",
    "provenance",
    "interrupts",
    "debug",
    "routing",
    "data",
    "nn",
    "analysis",
    "train",
    "weights",
    "export",
    "emcaps",
    "report",
    "explorer",
    "bench",
    "experiments",
    "documents",
    "cli",
    "__main__",
]


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_name(path): path for path in sorted((SOURCE / "emcaps").rglob("*.py"))}


def imports_of(text: str) -> set[str]:
    """The modules of emcaps that a source text imports."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in names}
    return found & MODULES.keys()


def package(module: str) -> str:
    """The first part of a module's name below emcaps; the package itself is "emcaps"."""
    return [*module.split("."), "emcaps"][1]


GRAPH = {name: imports_of(path.read_text(encoding="utf-8")) - {name} for name, path in MODULES.items()}


def wrong_way(graph: dict[str, set[str]]) -> list[str]:
    return [
        f"{module} imports {other}"
        for module, others in graph.items()
        for other in sorted(others)
        if ORDER.index(package(other)) > ORDER.index(package(module))
    ]


def test_every_package_has_its_place_in_the_order():
    assert {package(module) for module in MODULES} == set(ORDER)


def test_imports_go_one_way():
    assert wrong_way(GRAPH) == []


def test_no_two_modules_need_each_other():
    TopologicalSorter(GRAPH).prepare()  # raises CycleError, which names the modules


def test_a_wrong_import_would_be_found():
    assert imports_of("def f():\n    from emcaps.train import loop\n    import emcaps.cli") == {
        "emcaps.train.loop",
        "emcaps.cli",
    }
    assert wrong_way({"emcaps.nn.layers": {"emcaps.train.loop"}}) == ["emcaps.nn.layers imports emcaps.train.loop"]
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()


def test_the_implementations_of_routing_do_not_import_each_other():
    ours = {"reference": "emcaps.routing.reference"} | {
        name: f"emcaps.routing.{name}_kernels" for name in ("triton", "numba")
    }
    for name, prefix in ours.items():
        others = tuple(value for key, value in ours.items() if key != name)
        for module, imported in GRAPH.items():
            if module.startswith(prefix):
                assert not [other for other in imported if other.startswith(others)], module
