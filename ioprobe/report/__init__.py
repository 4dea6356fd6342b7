"""Report to text: one file per output, each a function ``render(report) -> str``."""
