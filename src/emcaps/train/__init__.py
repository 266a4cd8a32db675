"""Training: schedules, the loop, checkpoints, evaluation and the run folder."""

from emcaps.train.checkpoint import load_network
from emcaps.train.evaluate import Evaluation, evaluate
from emcaps.train.loop import Progress, TrainResult, train
from emcaps.train.schedules import learning_rate, spread_margin

__all__ = [
    "Evaluation",
    "Progress",
    "TrainResult",
    "evaluate",
    "learning_rate",
    "load_network",
    "spread_margin",
    "train",
]
