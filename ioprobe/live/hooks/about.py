"""What a process of the job, and a loader in it, say of themselves."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from typing import Any

from ioprobe.instrument.clocks import now
from ioprobe.live.hooks.naming import iterated_name


def describe(loader: Any) -> dict[str, Any]:
    """Return what is known of a loader, as JSON; little where the job's environment lacks ioprobe's own packages."""
    found: dict[str, Any] = {"name": iterated_name(), "facts": None}
    # len() of a loader over an iterable dataset leaves a mark on it, on which later warnings depend.
    mark = getattr(loader, "_IterableDataset_len_called", None)
    try:
        import msgspec

        from ioprobe.instrument.facts import loader_facts

        found["facts"] = msgspec.to_builtins(loader_facts(loader, pickle_dataset=False))
    except Exception:  # no msgspec there, or a loader of an unusual make
        found["num_workers"] = int(getattr(loader, "num_workers", 0))
        found["prefetch_factor"] = getattr(loader, "prefetch_factor", None)
        found["batch_size"] = getattr(loader, "batch_size", None)
    finally:
        with contextlib.suppress(Exception):
            loader._IterableDataset_len_called = mark
    return found


def about_process() -> dict[str, Any]:
    """Return the facts of this process."""
    torch = sys.modules.get("torch")
    return {
        "kind": "process",
        "pid": os.getpid(),
        "parent": os.getppid(),
        "argv": list(getattr(sys, "orig_argv", sys.argv)),
        "python": sys.version.split()[0],
        "torch": getattr(torch, "__version__", None),
        "host": socket.gethostname(),
        "begin_s": now(),
        **rank_of_process(),
    }


def rank_of_process() -> dict[str, Any]:
    """Return rank and world size, from torch.distributed where it is initialised, else from the environment."""
    found: dict[str, Any] = {}
    for key, names in (("rank", ("RANK", "SLURM_PROCID")), ("world_size", ("WORLD_SIZE", "SLURM_NTASKS"))):
        for name in names:
            if os.environ.get(name, "").isdecimal():
                found[key] = int(os.environ[name])
                break
    distributed = sys.modules.get("torch.distributed")
    with contextlib.suppress(Exception):
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            found |= {"rank": distributed.get_rank(), "world_size": distributed.get_world_size()}
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    with contextlib.suppress(Exception):
        found["device"] = "cuda" if cuda is not None and cuda.is_initialized() else "cpu"
    return found
