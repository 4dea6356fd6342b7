"""ioprobe: a data-input pipeline bottleneck analyzer for ML training.

The library measures (``probe``, ``live``), models (``model``), diagnoses
(``diagnosis``) and renders (``report``); what was measured travels between
them as one versioned file, :class:`ioprobe.run.Run`. Importing this package
pulls neither torch nor pyarrow.
"""

from typing import Any

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name == "watch":
        from ioprobe.watching import watch

        return watch
    raise AttributeError(f"module 'ioprobe' has no attribute '{name}'")
