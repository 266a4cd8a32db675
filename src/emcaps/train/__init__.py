"""Training: schedules, the loop, checkpoints, evaluation and the run folder."""

from emcaps.train.checkpoint import load_network
from emcaps.train.evaluate import Evaluation, evaluate
from emcaps.train.graph import make_step
from emcaps.train.loop import NotFiniteError, Progress, TrainResult, train
from emcaps.train.schedules import learning_rate, spread_margin
from emcaps.train.step import make_optimiser

__all__ = [
    "Evaluation",
    "NotFiniteError",
    "Progress",
    "TrainResult",
    "evaluate",
    "learning_rate",
    "load_network",
    "make_optimiser",
    "make_step",
    "spread_margin",
    "train",
]
