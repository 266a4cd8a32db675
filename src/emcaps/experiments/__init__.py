"""One file per experiment, table or figure."""
