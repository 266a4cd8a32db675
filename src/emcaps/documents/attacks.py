"""The page on attacks: what `emcaps experiment attack` recorded of the networks that come with the package."""

from __future__ import annotations

from functools import partial

from emcaps.documents.recorded import attack_record
from emcaps.experiments.attack_tables import TABLES, attack_markdown


def table(name: str, _results: str) -> str:
    return attack_markdown(attack_record(), name)


BLOCKS = {name: partial(table, name) for name in TABLES if name != "transfer"}
"""The recorded networks read different images, so that none can be shown another's."""
