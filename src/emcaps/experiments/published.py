"""What others published for smallNORB: test errors, their cost and their source, and how published code routes.

The facts are their authors'. An error is 100 minus the accuracy where the source gives that. Parameters are counted or
quoted once for all networks that have the same layers.
"""

from __future__ import annotations

from typing import NamedTuple

SMALL_MONO, SMALL_STEREO = 67_154, 68_754
"""Counted: 64/8/16/16 with one and with two channels."""
FULL = 310_000
"""As Hinton et al. give it: 32/32/32/32."""


class Source(NamedTuple):
    text: str
    link: str


HINTON = Source("Hinton et al. (2018)", "https://openreview.net/forum?id=HJWLfGWRb")
HINTON_CODE = Source(
    "google-research, capsule_em", "https://github.com/google-research/google-research/tree/master/capsule_em"
)
GRITZMAN = Source("Gritzman (2019)", "https://arxiv.org/abs/1907.00652")
GRITZMAN_CODE = Source("IBM/matrix-capsules-with-em-routing", "https://github.com/IBM/matrix-capsules-with-em-routing")
RERUNS = Source(
    "tables of a pull request to Gritzman's code", "https://github.com/IBM/matrix-capsules-with-em-routing/pull/9"
)
YL_1993 = Source("README of yl-1993's code", "https://github.com/yl-1993/Matrix-Capsules-EM-PyTorch")
WWW0WWWJS1 = Source("README of www0wwwjs1's code", "https://github.com/www0wwwjs1/Matrix-Capsules-EM-Tensorflow")
MOEINH77 = Source("README of Moeinh77's code", "https://github.com/Moeinh77/Matrix-Capsule-Networks-PyTorch")
OFFICIUM = Source("log of Officium's code", "https://github.com/Officium/Capsules")
SWALTMANN = Source("training histories of SWaltmann's code", "https://github.com/SWaltmann/MatrixCapsuleNetwork")
VB_ROUTING = Source("README of VB routing", "https://github.com/fabio-deep/Variational-Capsule-Routing")
HEINSEN = Source("README of Heinsen (2019)", "https://github.com/glassroom/heinsen_routing_2019_paper")


ABLATIONS = {
    "it1": 9.7,
    "it2": 2.2,
    "it3": 1.8,
    "it5": 3.9,
    "it3-vector": 2.9,
    "it3-no-coordinates": 2.6,
    "it3-vector-no-coordinates": 3.2,
    "it3-margin": 3.2,
    "it3-cross-entropy": 5.8,
}
"""Test errors in percent of Hinton's full network in stereo, from Table 1 of HINTON, by the rows of ablations.py."""


class Figure(NamedTuple):
    """A published test error on smallNORB."""

    who: str
    network: str
    """Small, full or CNN as in Hinton et al., or what sets it apart."""
    view: str
    iterations: int | None
    error: float
    """In percent."""
    parameters: int | None
    how: str
    """How the error was measured, or who says so."""
    source: Source
    minutes: float | None = None
    """The time of training, where it can be worked out."""
    name: str = ""
    """What tables call it, where that is not the usual title."""

    @property
    def title(self) -> str:
        """Such as "Hinton, full, stereo, 3 iterations", as far as these are known."""
        count = "" if self.iterations is None else f"{self.iterations} iteration{'s' if self.iterations > 1 else ''}"
        return self.name or ", ".join(part for part in (self.who, self.network, self.view, count) if part)

    @property
    def accuracy(self) -> float:
        """In percent."""
        return round(100 - self.error, 2)


_ALL = (
    Figure("Hinton", "full", "stereo", 1, 9.7, FULL, "paper", HINTON),
    Figure("Hinton", "full", "stereo", 2, 2.2, FULL, "paper", HINTON),
    Figure("Hinton", "full", "stereo", 3, 1.8, FULL, "paper; 1.4 with several crops", HINTON),
    Figure("Hinton", "full", "stereo", 5, 3.9, FULL, "paper", HINTON),
    Figure("Hinton", "small", "stereo", 3, 2.2, 68_000, "paper", HINTON),
    Figure(
        "Hinton's released weights",
        "full",
        "stereo",
        3,
        1.8,
        316_650,
        "its README; 1.3 with 13 crops",
        HINTON_CODE,
        name="Hinton's released weights, full, stereo",
    ),
    Figure("Hinton", "CNN", "stereo", None, 5.2, 4_200_000, "paper", HINTON),
    Figure(
        "Ciresan", "CNN", "stereo", None, 2.56, 2_700_000, "as Hinton quotes it; more inputs and distortions", HINTON
    ),
    Figure("Gritzman", "small", "mono", 1, 13.8, SMALL_MONO, "paper", GRITZMAN),
    Figure("Gritzman", "small", "mono", 2, 4.6, SMALL_MONO, "paper", GRITZMAN),
    Figure("Gritzman", "small", "mono", 3, 6.3, SMALL_MONO, "paper", GRITZMAN),
    Figure(
        "Gritzman's code rerun",
        "small",
        "mono",
        2,
        7.2,
        SMALL_MONO,
        "2 iterations, last ten epochs: 6.7 to 7.7 in five runs",
        RERUNS,
        minutes=119 * 60,
        name="Gritzman's code rerun, mono",
    ),
    Figure(
        "Gritzman's code with dropout",
        "small",
        "mono",
        2,
        5.6,
        SMALL_MONO,
        "2 iterations, last ten epochs, mean of four runs; 5.4 to 6.6 in five",
        RERUNS,
        minutes=119 * 60,
        name="Gritzman's code with dropout, mono",
    ),
    Figure("yl-1993", "small", "mono", 1, 25.2, SMALL_MONO, "as Gritzman quotes it", GRITZMAN),
    Figure("yl-1993", "small", "mono", 2, 10.5, SMALL_MONO, "after 50 epochs", YL_1993),
    Figure("yl-1993", "small", "mono", 3, 17.5, SMALL_MONO, "as Gritzman quotes it", GRITZMAN),
    Figure("yl-1993", "full", "mono", None, 10.0, FULL, "its README", YL_1993),
    Figure("www0wwwjs1", "", "mono", 2, 8.2, None, "A = 32; its code has a decoder", WWW0WWWJS1),
    Figure("Moeinh77", "small", "", 2, 8.0, None, "its README", MOEINH77),
    Figure("Officium", "full", "stereo", 3, 9.1, FULL, "the best evaluation of its log", OFFICIUM),
    Figure(
        "Officium",
        "full",
        "stereo",
        3,
        11.9,
        FULL,
        "last step; 9.1 at its best",
        OFFICIUM,
        minutes=43 * 60,
        name="Officium, full, stereo, 8 GPUs",
    ),
    Figure(
        "SWaltmann",
        "small",
        "stereo",
        None,
        5.4,
        SMALL_STEREO,
        "last 20 epochs of 5,000; 12.8 with a sign of its cost put right",
        SWALTMANN,
    ),
    Figure("SWaltmann", "full", "stereo", None, 7.7, FULL, "last 20 epochs of 3,350", SWALTMANN, minutes=3350 * 3),
    Figure("VB routing", "three capsule layers", "stereo", None, 1.3, None, "its README; another routing", VB_ROUTING),
    Figure("VB routing", "one capsule layer", "stereo", None, 2.9, None, "its README; another routing", VB_ROUTING),
    Figure("Sabour", "dynamic routing", "stereo", None, 2.7, None, "as Hinton quotes it; another routing", HINTON),
    Figure("Heinsen", "96x96", "stereo", None, 0.9, 272_000, "best of ten on the test set; another routing", HEINSEN),
)
FIGURES = {figure.title: figure for figure in _ALL}

ESTIMATES = (
    ("reruns of Gritzman's code, 2 iterations", RERUNS, ("5", "-", "92.3 to 93.3", "94.1 to 94.7")),
    ("Gritzman's paper, 2 iterations", GRITZMAN, ("-", "-", "-", "95.4")),
)
"""Accuracies in mono by the way they were taken: name, source, and runs, last step, mean of the last ten and best."""


class Implementation(NamedTuple):
    """How published code deals with the three pitfalls of Gritzman (2019), as read from it."""

    name: str
    floor: str
    """Of the variance."""
    scaling: str
    """Of the data that parents get."""
    competition: str
    """Among which parents a child divides itself."""
    figure: Figure
    code: Source


IMPLEMENTATIONS = (
    Implementation(
        "yl-1993, mono, 2 iterations",
        "1e-8",
        "none, with λ 0.001",
        "types",
        FIGURES["yl-1993, small, mono, 2 iterations"],
        YL_1993,
    ),
    Implementation(
        "www0wwwjs1, mono, 2 iterations",
        "1e-9",
        "none, with a softmax instead of the logistic function",
        "types",
        FIGURES["www0wwwjs1, mono, 2 iterations"],
        WWW0WWWJS1,
    ),
    Implementation(
        "Officium, full, stereo, 3 iterations",
        "1e-8",
        "none",
        "neither: its softmax runs over different children",
        FIGURES["Officium, full, stereo, 3 iterations"],
        OFFICIUM,
    ),
    Implementation(
        "Gritzman's own, mono, 2 iterations",
        "1e-9, 1e-4 in his text",
        "100 O / (K² I), with λ 0.01",
        "types and positions",
        FIGURES["Gritzman, small, mono, 2 iterations"],
        GRITZMAN_CODE,
    ),
    Implementation(
        "Hinton's released one, full, stereo, 3 iterations",
        "5e-4",
        "none, with λ 0.01, a quarter of it in the class layer",
        "positions, for each pair of types",
        FIGURES["Hinton's released weights, full, stereo"],
        HINTON_CODE,
    ),
)
