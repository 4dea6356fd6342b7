"""The loader model. Pure: no I/O, no clock, no torch."""
