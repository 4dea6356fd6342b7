"""What to change for each cause and each limiting stage: code, action, and when the advice would be wrong."""

from __future__ import annotations

from typing import NamedTuple

from ioprobe.model.quality import QUALITY
from ioprobe.run import Limit

LOOK_AT_THE_STEP = f"look at the step: precision, compilation, model, batch size (mind that {QUALITY})"


class RemedyText(NamedTuple):
    """One piece of advice that is not a number of workers."""

    code: str
    action: str
    wrong_when: str


FOR_FINDING: dict[str, RemedyText] = {
    "repeats": RemedyText(
        "IO303",
        "split the stream by worker (and by rank) inside __iter__, with torch.utils.data.get_worker_info()",
        "the repetition is meant (each worker augments the same samples differently)",
    ),
    "idle-workers": RemedyText(
        "IO301",
        "write shards of equal size, at least as many as workers times ranks (reshard), or resample shards",
        "the measurement saw only the beginning of a stream whose later shards are spread better",
    ),
    "respawn": RemedyText(
        "IO103",
        "set persistent_workers=True, so that workers live on between epochs",
        "epochs in training are much longer than those measured here, or the dataset must be rebuilt each epoch",
    ),
    "epoch-edges": RemedyText(
        "IO610",
        "begin epochs less often: let the dataset or the sampler go round (repeat), keep shuffle buffers and open files"
        " from one epoch to the next, and check or list the data once",
        "epochs in training are much longer than those measured here",
    ),
    "no-workers": RemedyText(
        "IO102", "use worker processes: num_workers of at least 1", "the dataset cannot be used from another process"
    ),
    "same-thread": RemedyText(
        "IO102",
        "make batches beside the step: a Dataset read by a DataLoader with num_workers of at least 1, or a process that"
        " fetches ahead",
        "a batch needs the result of the step before",
    ),
    "thread-pools": RemedyText(
        "IO107",
        "give each worker one thread: OMP_NUM_THREADS=1, torch.set_num_threads(1), cv2.setNumThreads(0) in"
        " worker_init_fn",
        "the training host has at least num_workers times the threads in cores",
    ),
    "pinned": RemedyText(
        "IO609",
        "let the workers use all cores of the job: no os.sched_setaffinity in worker_init_fn, 'taskset -c' and cpuset"
        " wide enough, OMP_PROC_BIND and KMP_AFFINITY unset (a library may bind whoever imports it)",
        "the other cores are kept for something that needs them more",
    ),
    "too-many-workers": RemedyText(
        "IO101",
        "use about as many workers as there are usable cores",
        "the training host has more cores than the one measured",
    ),
    "sampler": RemedyText(
        "IO108",
        "make the sampler cheap: precompute (cumulative sums, an alias table, one permutation) and draw many indices"
        " at once",
        "the sampler's cost does not grow with the dataset and the real dataset is much smaller",
    ),
    "pin-thread": RemedyText(
        "IO605",
        "move fewer bytes per batch (uint8 until the device), pin once, or copy inside the workers",
        "the thread does more than copying",
    ),
    "inline": RemedyText(
        "IO605",
        "let the workers do it, or a thread that is a batch ahead of the loop: copies from pinned memory, non_blocking,"
        " on a stream of their own",
        "the step needs its result at once and nothing can be made ahead",
    ),
    "inline-work": RemedyText(
        "IO605",
        "let the workers do it, in the dataset or in its collate function: a whole batch made there needs no work in"
        " the loop's own thread",
        "it needs samples from several workers at once",
    ),
    "transport": RemedyText(
        "IO604",
        "send fewer bytes and objects from worker to main process: tensors instead of lists and strings, uint8 instead"
        f" of float32, smaller batches (mind that {QUALITY})",
        "the step would have to do the conversion on a device that has no time for it",
    ),
    "lock": RemedyText(
        "IO606",
        "open one handle per worker process (in worker_init_fn or on first use), without a lock that all workers share",
        "the lock protects a device that can serve only one reader anyway",
    ),
    "bursts": RemedyText(
        "IO104",
        "prefetch deeper (prefetch_factor) or make the pauses smaller: smaller row groups, chunks or objects, read"
        " ahead",
        "memory does not allow it: each prefetched batch stays in shared memory",
    ),
    "tail-in-order": RemedyText(
        "IO106",
        "hand batches over as they come (in_order=False) and prefetch deeper, or cap and pre-process the slow samples",
        "the order of samples must be reproducible",
    ),
    "neighbours": RemedyText(
        "IO607",
        "release or shrink what else runs in this job while training (validation workers, background threads)",
        "the other load is not there in training",
    ),
    "step-contention": RemedyText(
        "IO608",
        "count the step's own threads against the cores: fewer intra-op threads, fewer workers, or pre-processed data",
        "in training the step runs on an accelerator",
    ),
    "step-contention-in-process": RemedyText(
        "IO608",
        "count the step's own threads against the cores: fewer intra-op threads, or pre-processed data",
        "in training the step runs on an accelerator",
    ),
    "own-processes": RemedyText(
        "IO616",
        "start more of the loader's own processes, or a DataLoader with num_workers in their place: cores are free",
        "they wait for storage, or for one another, and not for a core",
    ),
    "own-processes-wait": RemedyText(
        "IO616",
        "keep more requests in flight: more processes or threads of the loader's own, or a DataLoader with num_workers"
        " in their place; or make fewer and larger ones",
        "the storage serves one request at a time: then only packing helps",
    ),
    "own-processes-fill-cores": RemedyText(
        "IO616",
        "let the loader's own processes compute less: smaller or pre-processed data, a faster decoder, whole arrays"
        " instead of Python loops, or on the device; more processes would share the same cores",
        "the training host has many more cores per accelerator",
    ),
}

FOR_LIMIT: dict[Limit, RemedyText] = {
    Limit.DECODE: RemedyText(
        "IO611",
        "decode less or faster: store smaller images, decode at reduced scale, a faster decoder, plain tar instead of"
        " .tar.gz, smaller chunks or row groups, or decode on the device",
        "the training host has many more cores per accelerator",
    ),
    Limit.TRANSFORM: RemedyText(
        "IO612",
        "make the transform cheaper: whole arrays instead of Python loops, once per batch, offline, or on the device",
        "the training host has many more cores per accelerator",
    ),
    Limit.COLLATE: RemedyText(
        "IO613",
        "collate whole rows: preallocate and copy, pad_sequence, bucket by length; no Python loop over elements",
        "batches in training are much smaller",
    ),
    Limit.STORAGE_LATENCY: RemedyText(
        "IO614",
        "keep more requests in flight (more workers, threads or async reads inside a worker, read-ahead), or make fewer"
        " and larger ones: pack samples into shards",
        "the device serves one request at a time (a spinning disk): then only packing helps",
    ),
    Limit.STORAGE_BANDWIDTH: RemedyText(
        "IO615",
        "read fewer bytes per sample (uint8 or encoded instead of float32, compression), cache locally, or use faster"
        " storage; more workers only queue for it",
        "the link is shared with others only now",
    ),
    Limit.IPC: RemedyText(
        "IO617",
        "send less between processes: tensors in shared memory instead of pickled arrays, uint8 instead of float32, a"
        f" batch in one piece, fewer samples a message (mind that {QUALITY})",
        "the processes that send are slow themselves",
    ),
    Limit.COMMUNICATION: RemedyText(
        "IO620",
        "change nothing in the loader; overlap or compress communication, use a faster interconnect, or accumulate"
        f" gradients and enlarge the batch (mind that {QUALITY})",
        "the wait for the other ranks comes from their loaders: look at every rank",
    ),
}

ONE_AT_A_TIME = RemedyText(
    "IO614",
    "ask for fewer and larger reads: requests seem to be served one at a time, and more workers bring next to nothing."
    " Pack samples into shards, and look for what workers share (a lock, one connection, a database file) or read twice"
    " (a stream that each of them reads whole)",
    "the second setting was measured while the storage was busy with others",
)
"""Instead of the advice on storage latency, where more workers were seen not to help."""

FOR_FAILURE: dict[str, RemedyText] = {
    "descriptors": RemedyText(
        "IO207",
        "copy what the loop keeps of a batch (or drop it), raise 'ulimit -n', or use"
        " torch.multiprocessing.set_sharing_strategy('file_system')",
        "",
    ),
    "shared-memory": RemedyText(
        "IO202",
        "enlarge /dev/shm (--shm-size, --ipc=host), or use fewer workers, a smaller prefetch_factor or uint8 batches",
        "",
    ),
    "fork-deadlock": RemedyText(
        "IO401",
        "start workers with multiprocessing_context='forkserver' or 'spawn', or use no thread pool (OpenMP, BLAS,"
        " OpenCV) in the main process before the workers are forked",
        "",
    ),
    "killed": RemedyText("IO201", "use fewer workers or a smaller prefetch_factor, or give the job more memory", ""),
    "killed-again": RemedyText(
        "IO201",
        "use fewer workers or a smaller prefetch_factor, or raise the limit that ends them: earlyoom, systemd-oomd and"
        " schedulers kill for memory, too",
        "the dataset itself ends its worker",
    ),
}

GENERAL: tuple[RemedyText, ...] = (
    RemedyText(
        "IO600",
        "change nothing in the loader: the step, not the input, limits the job",
        "the step gets faster (another accelerator, mixed precision, a smaller model): then measure again",
    ),
    RemedyText(
        "IO601",
        "set num_workers, prefetch_factor or persistent_workers to the best setting of the loader model",
        "the training host has other cores, storage or neighbours than the one measured",
    ),
    RemedyText(
        "IO602",
        "use fewer workers: the model says that they are as fast, with less memory and fewer processes",
        "the loader is to serve a faster step soon",
    ),
)
"""Advice that comes from the loader model rather than from one cause."""


def advice_of(code: str) -> RemedyText | None:
    """Return what a code of advice means; None where no advice has it.

    >>> advice_of("IO611").action.startswith("decode less")
    True
    """
    texts = (*FOR_FINDING.values(), *FOR_LIMIT.values(), *FOR_FAILURE.values(), *GENERAL)
    return next((text for text in texts if text.code == code), None)
