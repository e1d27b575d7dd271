"""Kinds of runs. Each module has settings that can be sent to another process, and `run`, which returns a record."""
