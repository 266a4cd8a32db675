"""Toys: smallNORB's categories, views and lightings as rendered models, so that nothing needs a download."""

from emcaps.data.toys.make import TEST_INSTANCES, TRAIN_INSTANCES, make_toys, render_instance

__all__ = ["TEST_INSTANCES", "TRAIN_INSTANCES", "make_toys", "render_instance"]
