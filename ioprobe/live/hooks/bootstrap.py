"""Begin to observe a process of the job: wait for torch, then hook its DataLoader.

Nothing is imported for the job's sake and no random number is drawn; a process that never imports torch only carries a
finder that looks at module names.
"""

from __future__ import annotations

import json
from typing import Any

from ioprobe.live.hooks.finder import AfterImport

_OTHER_FRAMEWORKS = ("jax", "tensorflow")
_STATEFUL = "torchdata.stateful_dataloader.stateful_dataloader"


def begin(settings: str) -> None:
    """Arrange for the hooks.

    Args:
        settings: JSON of ``ioprobe run``: where to write, and what to observe.
    """
    options: dict[str, Any] = json.loads(settings)
    made: list[Any] = []

    def recorder() -> Any:
        """Make the recorder when it is first needed, so that other processes import nothing for it."""
        if not made:
            from ioprobe.live.hooks.recorder import start

            made.append(start(options))
        return made[0]

    def hook_loader() -> None:
        from ioprobe.instrument.hooks import install

        install(recorder(), stateful=False)
        recorder().framework()

    def hook_stateful_loader() -> None:
        from ioprobe.instrument.hooks import install_stateful

        install_stateful(recorder())

    def hook_backward() -> None:
        from ioprobe.live.hooks.meeting import time_backward

        time_backward(recorder().meetings)
        recorder().backwards.watch()

    def hook_collectives() -> None:
        from ioprobe.live.hooks.meeting import time_collectives

        time_collectives(recorder().meetings)

    actions: dict[str, Any] = {
        "torch.utils.data.dataloader": hook_loader,
        _STATEFUL: hook_stateful_loader,
        "torch.autograd": hook_backward,
        "torch.distributed.distributed_c10d": hook_collectives,
    }
    for name in _OTHER_FRAMEWORKS:
        actions[name] = lambda: recorder().framework()
    AfterImport(actions).install()
