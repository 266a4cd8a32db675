"""The page on differences from the papers: what the start of the matrices is worth."""

from __future__ import annotations

from emcaps.documents.recorded import RESULTS
from emcaps.report.markdown import markdown_link, markdown_table
from emcaps.train.run_folder import EVALUATION, read_config, read_evaluation

STARTS = {"identity": "identity plus noise", "gaussian": "Gaussian"}


def start_of_matrices(results: str) -> str:
    rows = []
    for name, start in STARTS.items():
        run = RESULTS / "start-of-matrices" / name
        network, (accuracy, _) = read_config(run).network, read_evaluation(run / EVALUATION)
        rows.append(
            (
                start,
                f"{network.weight_identity:g}",
                f"{network.weight_noise:g}",
                markdown_link(f"{100 * accuracy:.1f}", f"{results}/start-of-matrices/{name}"),
            )
        )
    return markdown_table(("matrices start as", "`weight_identity`", "`weight_noise`", "accuracy, %"), rows)


BLOCKS = {"start-of-matrices": start_of_matrices}
