"""What a faster setting may cost that no clock sees."""

from __future__ import annotations

from ioprobe.run import Caveat

QUALITY = (
    "a changed global batch changes training: learning rate and schedule need re-tuning, and the quality that is "
    "reached may differ"
)
"""Goes with every figure and every piece of advice that changes how many samples one optimizer step sees."""


def quality_caveat(because: str) -> Caveat:
    """Return the caveat for figures at different global batches."""
    settle = "compare quality at equal epochs before taking the fastest"
    return Caveat("global-batch", f"{because}: {QUALITY}", settle)
