"""The page on attacks: what `emcaps experiment attack` recorded of trained networks."""

from __future__ import annotations

from functools import partial

from emcaps.documents.recorded import attack_record
from emcaps.experiments.attack_tables import TABLES, attack_markdown


def table(name: str, _results: str) -> str:
    return attack_markdown(attack_record(), name)


def transfer(_results: str) -> str:
    """The largest size alone, to keep the page short."""
    record = attack_record()
    largest = max(record["settings"]["epsilons"])
    return attack_markdown(record | {"settings": record["settings"] | {"epsilons": [largest]}}, "transfer")


BLOCKS = {name: partial(table, name) for name in TABLES if name != "transfer"} | {"transfer": transfer}
