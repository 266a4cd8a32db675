"""Settings of all tests. Being here, it also lets them import the helpers of tests/routing, as `routing.compare`."""

from hypothesis import settings

# The same examples on every machine and in every run, and no failure because a shared machine was slow for a moment.
settings.register_profile("emcaps", derandomize=True, deadline=None, database=None)
settings.load_profile("emcaps")
