"""From what was measured to what it means. Pure: no I/O, no clock, no torch."""
