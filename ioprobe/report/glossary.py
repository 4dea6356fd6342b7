"""The words that a report uses, defined once: page, help and documentation read them here."""

from __future__ import annotations

GLOSSARY: dict[str, str] = {
    "ladder": "The rate that each stage could sustain alone. The lowest rung bounds the job; its distance to the "
    "step's rung is the stall.",
    "stall share": "Time for which the loop is blocked waiting for its next batch over wall time, in steady state: "
    "warm-up and the batches that were prefetched before it are left out.",
    "AU": "Accelerator utilization as MLPerf Storage defines it: 1 − stall share, where the step is all compute.",
    "throughput": "Work over wall time in the measured window, never the mean of rates of single batches.",
    "headroom": "The step's rate over the loop's, minus 1: the most that any change on the input side can bring.",
    "data-bound": "The step waits for data.",
    "compute-bound": "The loader keeps up; only a faster step makes training faster.",
    "communication-bound": "The ranks wait for each other's gradients, not for data.",
    "balanced": "Loader and step keep pace; making one faster makes the other the limit.",
    "misconfigured": "A setting or the data's layout is to blame, not a resource: it fails, idles workers, repeats "
    "samples or starts processes again; the advice names it.",
    "undecided": "The interval covers the boundary, or the data cannot carry a verdict.",
    "CPU, blocked, no core": "Wall time of a stage is CPU time, plus time blocked on storage, a lock or another "
    "process, plus time for which the thread could run but no core was free.",
    "interval": "95% of the estimates made this way cover the true value. A figure without one was given, or rests on "
    "a single measurement.",
    "verified": "Measured by a real run at the advised settings. A miss is a measured gain whose interval does not "
    "touch the predicted one.",
    "interference": "The step's time with the loader running over its time with the loader idle.",
    "storage": "The dataset's own access pattern without decoding, at the loader's concurrency.",
    "read": "Storage and the container's framing (tar member, row group, record), in one worker.",
    "decode, transform": "The dataset's own code without its reading.",
    "collate": "Samples made into a batch in the worker.",
    "transport": "A batch's way from worker to main process: queue, shared memory, deserialising, pinning.",
    "loader": "The whole DataLoader while the main process only drains it.",
    "transfer": "Host to device.",
    "step": "The training step on a batch that is already there: forward, backward, optimizer.",
    "communication": "What of the step no computation hides: by a trace, or by running the same step with and without "
    "gradient synchronisation (no_sync), whichever shows more.",
    "MFU, HFU": "Floating-point work of the model (HFU: with what is computed twice) over the accelerator's dense peak "
    "in the type in use.",
    "loop": "Loader and step together, as in training: the truth that the other rungs must explain.",
}
