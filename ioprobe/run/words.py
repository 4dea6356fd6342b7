"""The vocabulary of a run: stages, limits, caveats and failures."""

from __future__ import annotations

from enum import Enum

import msgspec


class Stage(str, Enum):
    """Where time goes. The rungs of the ladder, bottom to top, and what lies between."""

    STORAGE = "storage"
    READ = "read"
    DECODE = "decode"
    TRANSFORM = "transform"
    COLLATE = "collate"
    TRANSPORT = "transport"
    SAMPLER = "sampler"
    LOADER = "loader"
    TRANSFER = "transfer"
    COMMUNICATION = "communication"
    STEP = "step"
    LOOP = "loop"
    LOCK = "lock"
    WAIT = "wait"
    CHECKPOINT = "checkpoint"
    STARTUP = "startup"
    OTHER = "other"


class Limit(str, Enum):
    """What bounds the job: one vocabulary everywhere."""

    STORAGE_BANDWIDTH = "storage-bandwidth"
    STORAGE_LATENCY = "storage-latency"
    DECODE = "decode"
    TRANSFORM = "transform"
    COLLATE = "collate"
    IPC = "ipc"
    WORKER_STARTUP = "worker-startup"
    SAMPLER = "sampler"
    LOCK_CONTENTION = "lock-contention"
    OVERSUBSCRIPTION = "oversubscription"
    HOST_TO_DEVICE = "host-to-device"
    STEP = "step"
    COMMUNICATION = "communication"


class Caveat(msgspec.Struct, frozen=True):
    """A reason to trust a figure less, and the way to settle it."""

    code: str
    """Short and stable, such as ``cache-warm`` or ``few-batches``."""
    text: str
    """One sentence with the numbers."""
    settle: str = ""
    """The command or action that would settle it."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Something that broke while it was measured. It is evidence, too."""

    phase: str
    """``factory``, ``loop``, ``loader``, ``step``, ``storage`` or ``verify``."""
    kind: str
    """``exception``, ``worker-died``, ``killed`` (for memory), ``sigkill`` (by somebody else), ``killed-again`` (by
    somebody else, in both of two runs), ``hang``, ``empty``, ``interrupted`` or ``rank-lost``."""
    message: str
    """One line, as the user should read it."""
    where: str = ""
    """file:line in the user's code, shard, or the like."""
    hint: str = ""
    """What to do next."""

    @property
    def sentence(self) -> str:
        """The message with its place."""
        return f"{self.message} ({self.where})" if self.where and self.where not in self.message else self.message
