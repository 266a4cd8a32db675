"""The benchmark: what is timed, checks that must pass first, timing, and tables and pictures of the recorded rows.

Nothing is imported here, so that the command line can read the names of the suites without torch.
"""
