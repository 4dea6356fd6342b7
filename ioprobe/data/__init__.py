"""Sharded datasets: synthesize, read, describe; one file a format; stores through fsspec."""
