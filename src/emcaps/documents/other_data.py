"""The page on MNIST and Fashion-MNIST."""

from __future__ import annotations

from emcaps.documents.recorded import other_data_records
from emcaps.experiments.other_data import markdown_rows


def rows(results: str) -> str:
    return markdown_rows(other_data_records(), f"{results}/other-data/")


BLOCKS = {"rows": rows}
