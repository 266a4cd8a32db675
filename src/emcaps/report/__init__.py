"""Reports: tables for the terminal and pictures. They read results and traces, and never train."""
