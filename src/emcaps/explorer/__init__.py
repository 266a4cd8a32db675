"""The explorer: one HTML page in which EM routing runs and can be looked into, down to a single vote."""
