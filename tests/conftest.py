"""Settings of all tests. Being here, it also lets them import the helpers beside it, as `routing.compare`."""

import torch
from hypothesis import settings

# The same examples on every machine and in every run, and no failure because a shared machine was slow for a moment.
settings.register_profile("emcaps", derandomize=True, deadline=None, database=None)
settings.load_profile("emcaps")

# The tests' tensors are tiny: a second thread would only wait for the first, and spin while it waits.
torch.set_num_threads(1)
