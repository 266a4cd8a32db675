"""Toys: smallNORB's categories, views and lightings as rendered models, so that nothing needs a download."""

from emcaps.data.toys.make import CATEGORIES, TEST_INSTANCES, TRAIN_INSTANCES, make_toys, render_instance

__all__ = ["CATEGORIES", "TEST_INSTANCES", "TRAIN_INSTANCES", "make_toys", "render_instance"]
