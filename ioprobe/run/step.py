"""The training step, measured alone or within the loop, or divided by a trace."""

from __future__ import annotations

import msgspec

from ioprobe.run.words import Failure


class SyncDifference(msgspec.Struct, kw_only=True):
    """The same step with and without gradient synchronisation, in turn, on all ranks at once.

    The optimizer gets no gradients in either case: it does the same, and the ranks' weights stay as they are.
    """

    switch: str
    """What turned it off, such as ``DistributedDataParallel.no_sync``."""
    with_s: list[float] = []
    """Mean step of each round, gradients synchronised [s]."""
    without_s: list[float] = []
    """The same without, round by round [s]."""
    steps: int = 0
    """Steps that each mean covers."""
    sharded: bool = False
    """True where parameters are gathered in either case, so that the difference is a part of the communication."""
    failed: str = ""
    """Why it could not be measured; empty where it was."""


class StepRun(msgspec.Struct, kw_only=True):
    """The training step on a resident batch, nothing else running."""

    durations_s: list[float]
    """Steady state, in order [s]."""
    warmup_s: list[float] = []
    samples_per_step: int = 1
    tokens_per_step: int | None = None
    device: str = "cpu"
    emulated: bool = False
    """True for a constant sleep (``--step-ms`` or a workload preset) that takes no CPU."""
    coupled: bool = False
    """True where the steps were timed within the loop, the loader at work beside them."""
    source: str = ""
    """Where the step comes from: file.py:function, ``--step-ms 20``, ``resnet50 on H100 (...)``."""
    cpu_s: list[float] = []
    """CPU of the process per step, all threads, same length as durations_s [s]."""
    parts_s: dict[str, float] = {}
    """Mean seconds per step in ``compute``, ``communication``, ``transfer``, ``checkpoint``, ``idle`` from a trace."""
    parts_steps: int = 0
    """Steps that the trace covers."""
    sync: SyncDifference | None = None
    """None with one rank, or where the step's synchronisation cannot be turned off."""
    updates_per_step: float | None = None
    """Optimizer steps per call, by torch's own hook: 0.25 with four micro-steps each; None where none was seen."""
    flops_per_step: float | None = None
    """Model FLOPs of a step: forward and backward, activation recomputation left out."""
    executed_flops_per_step: float | None = None
    """The same with recomputation, as the hardware ran it."""
    flops_source: str = ""
    """Formula and numbers where the FLOPs were declared; empty where torch counted them."""
    joules_per_step: float | None = None
    """Energy of the accelerator per step, from its own counter; None without one [J]."""
    kernel_time_share: float | None = None
    """Driver's "GPU utilization": share of its last sampling period in which any kernel ran [fraction]."""
    dtype: str | None = None
    """Type in which the matrix products run: ``float32``, ``bfloat16``, ``float16``, ..."""
    accelerator: str = ""
    """What an emulated step stands for, by name; empty where the step ran for real."""
    failure: Failure | None = None


class Partition(msgspec.Struct, frozen=True, kw_only=True):
    """A trace's wall time divided; the five seconds sum to window_s."""

    compute_s: float
    communication_s: float
    """Exposed: not hidden under compute."""
    transfer_s: float
    """Exposed host-to-device copies."""
    data_stall_s: float
    """Device idle while the main thread is inside the DataLoader."""
    other_idle_s: float
    window_s: float
    steps: int = 0
    device: str = "cpu"
    rank: int = 0
    hidden_s: dict[str, float] = {}
    """Total seconds of ``communication``, ``transfer`` and ``loader``, hidden parts included; where seen also
    ``other_copies`` (exposed copies that are not host to device and fills, part of compute_s), ``pageable`` (copies
    from memory that is not pinned), ``waiting_for_ranks`` (in collectives, for a later rank) and ``kept_waiting``
    (what each other rank waited for this one, on average)."""
    steps_s: list[float] = []
    """Length of each step's window, in order; they sum to window_s [s]."""
    stalls_s: list[float] = []
    """Data stall within each step's window; they sum to data_stall_s [s]."""
    source: str = ""
    """File that it was read from."""
