"""What the main process and its threads do, stack by stack, and the stage that it is."""

from __future__ import annotations

from written_stacks import FETCH, FORK, GETITEM, IMPL, NEXT, POLL, QUEUE_GET, SITE, STD, stack

from ioprobe.instrument.stages import Frame
from ioprobe.run import Stage

MAIN_CASES: list[tuple[str, str, Stage, list[Frame]]] = [
    # (what the stack shows, role, stage, frames)
    (
        "a condition's own lock says nothing",
        "main",
        Stage.WAIT,
        stack(f"Condition.wait {STD}threading.py:331 [waiter.acquire]", f"Queue.get {STD}queue.py:180", NEXT),
    ),
    (
        "the main thread waiting for a prefetching thread of the user's",
        "main",
        Stage.WAIT,
        stack(f"Condition.wait {STD}threading.py:327", f"Queue.get {STD}queue.py:171", "main /home/me/t.py:3"),
    ),
    (
        "the main thread waiting for processes of the user's",
        "main",
        Stage.WAIT,
        stack(POLL, QUEUE_GET, "main /home/me/t.py:3"),
    ),
    (
        "the loader's own mark for the profiler is no training step",
        "main",
        Stage.WAIT,
        stack(
            f"TorchBindOpOverload.__call__ {SITE}torch/_ops.py:1089",
            f"record_function.__exit__ {SITE}torch/autograd/profiler.py:932",
            f"_BaseDataLoaderIter.__next__ {SITE}torch/utils/data/dataloader.py:720",
            "main /home/me/t.py:3",
        ),
    ),
    (
        "a mark for the profiler in the training loop",
        "main",
        Stage.STEP,
        stack(
            f"TorchBindOpOverload.__call__ {SITE}torch/_ops.py:1089",
            f"record_function.__exit__ {SITE}torch/autograd/profiler.py:932",
            "main /home/me/t.py:9",
        ),
    ),
    (
        "pickling a batch in the feeder thread",
        "thread",
        Stage.TRANSPORT,
        stack(
            f"reduce_storage {SITE}torch/multiprocessing/reductions.py:600",
            f"ForkingPickler.dumps {STD}multiprocessing/reduction.py:51",
            f"Queue._feed {STD}multiprocessing/queues.py:244",
            f"Thread.run {STD}threading.py:982",
        ),
    ),
    (
        "an idle feeder",
        "thread",
        Stage.WAIT,
        stack(f"Condition.wait {STD}threading.py:327", f"Queue._feed {STD}multiprocessing/queues.py:231"),
    ),
    (
        "an idle resource sharer",
        "thread",
        Stage.WAIT,
        stack(
            f"socket.accept {STD}socket.py:294", f"_ResourceSharer._serve {STD}multiprocessing/resource_sharer.py:138"
        ),
    ),
    (
        "the pin thread copying",
        "thread",
        Stage.TRANSFER,
        stack(
            f"pin_memory {SITE}torch/utils/data/_utils/pin_memory.py:70",
            f"_pin_memory_loop.<locals>.do_one_step {SITE}torch/utils/data/_utils/pin_memory.py:40",
            f"_pin_memory_loop {SITE}torch/utils/data/_utils/pin_memory.py:53",
        ),
    ),
    (
        "the idle pin thread",
        "thread",
        Stage.WAIT,
        stack(POLL, QUEUE_GET, f"_pin_memory_loop.<locals>.do_one_step {SITE}torch/utils/data/_utils/pin_memory.py:28"),
    ),
    ("an idle pool thread", "thread", Stage.WAIT, stack(f"_worker {STD}concurrent/futures/thread.py:81")),
    (
        "a user's prefetch thread that decodes",
        "thread",
        Stage.DECODE,
        stack(
            f"ImageFile.load {SITE}PIL/ImageFile.py:425",
            "prefetch /home/me/p.py:3",
            f"Thread.run {STD}threading.py:982",
        ),
    ),
    ("the main process waiting for a batch", "main", Stage.WAIT, stack(POLL, QUEUE_GET, NEXT)),
    (
        "the main process waiting for the pin thread",
        "main",
        Stage.WAIT,
        stack(f"Condition.wait {STD}threading.py:331", f"Queue.get {STD}queue.py:180", NEXT),
    ),
    (
        "the main process unpickling a batch",
        "main",
        Stage.TRANSPORT,
        stack(f"Queue.get {STD}multiprocessing/queues.py:122", NEXT),
    ),
    (
        "the main process mapping shared memory",
        "main",
        Stage.TRANSPORT,
        stack(
            f"Connection._recv {STD}multiprocessing/connection.py:395",
            f"DupFd.detach {STD}multiprocessing/resource_sharer.py:57",
            f"rebuild_storage_fd {SITE}torch/multiprocessing/reductions.py:538",
            QUEUE_GET,
            NEXT,
        ),
    ),
    (
        "the user's sampler",
        "main",
        Stage.SAMPLER,
        stack(
            "Weighted.__iter__ /home/me/s.py:40",
            f"_BaseDataLoaderIter._next_index {SITE}torch/utils/data/dataloader.py:714",
            f"_MultiProcessingDataLoaderIter._try_put_index {SITE}torch/utils/data/dataloader.py:1540",
            NEXT[2:],
        ),
    ),
    (
        "torch's sampler",
        "main",
        Stage.SAMPLER,
        stack(f"RandomSampler.__iter__ {SITE}torch/utils/data/sampler.py:170", NEXT[3:]),
    ),
    ("starting workers", "main", Stage.STARTUP, stack(FORK[2:])),
    (
        "decoding in the main process, num_workers=0",
        "main",
        Stage.DECODE,
        stack(
            f"ImageFile.load {SITE}PIL/ImageFile.py:425",
            GETITEM,
            FETCH,
            f"_SingleProcessDataLoaderIter._next_data {SITE}torch/utils/data/dataloader.py:790",
            NEXT[3:],
        ),
    ),
    (
        "transforms in the main process, num_workers=0",
        "main",
        Stage.TRANSFORM,
        stack("Blur.forward /home/me/aug.py:9", IMPL, GETITEM, FETCH, NEXT[3:]),
    ),
    (
        "a hand-written get_batch",
        "main",
        Stage.READ,
        stack(
            f"memmap.__getitem__ {SITE}numpy/_core/memmap.py:359",
            "get_batch /home/me/train.py:116",
            "main /home/me/train.py:3",
        ),
    ),
    (
        "a forward",
        "main",
        Stage.STEP,
        stack(f"Linear.forward {SITE}torch/nn/modules/linear.py:134", IMPL, "main /home/me/t.py:3"),
    ),
    (
        "a backward",
        "main",
        Stage.STEP,
        stack(
            f"_engine_run_backward {SITE}torch/autograd/graph.py:840",
            f"Tensor.backward {SITE}torch/_tensor.py:620",
            "main /home/me/t.py:3",
        ),
    ),
    ("an optimizer", "main", Stage.STEP, stack(f"SGD.step {SITE}torch/optim/sgd.py:120", "main /home/me/t.py:3")),
    ("compiled code", "main", Stage.STEP, stack(f"_fn {SITE}torch/_dynamo/eval_frame.py:400", "main /home/me/t.py:3")),
    (
        "an emulated step",
        "main",
        Stage.STEP,
        stack("SleepStep.__call__ /home/me/m.py:159 [time.sleep]", "main /home/me/t.py:3"),
    ),
    (
        "json in the training loop is no decoding",
        "main",
        Stage.STEP,
        stack(f"JSONEncoder.encode {STD}json/encoder.py:200", "main /home/me/t.py:3"),
    ),
    ("copying a batch to the device", "main", Stage.TRANSFER, stack("main /home/me/t.py:3 [batch.to]")),
    (
        "all_reduce",
        "main",
        Stage.COMMUNICATION,
        stack(f"all_reduce {SITE}torch/distributed/distributed_c10d.py:2800", "main /home/me/t.py:3"),
    ),
    (
        "FSDP's all-gather inside a forward",
        "main",
        Stage.COMMUNICATION,
        stack(f"all_gather_into_tensor {SITE}torch/distributed/distributed_c10d.py:3900", IMPL, "main /home/me/t.py:3"),
    ),
    (
        "torch.save",
        "main",
        Stage.CHECKPOINT,
        stack(
            f"_save {SITE}torch/serialization.py:1200", f"save {SITE}torch/serialization.py:960", "main /home/me/t.py:3"
        ),
    ),
    (
        "a user's save_checkpoint",
        "main",
        Stage.CHECKPOINT,
        stack("save_checkpoint /home/me/t.py:47 [time.sleep]", "main /home/me/t.py:3"),
    ),
    ("a progress bar", "main", Stage.OTHER, stack(f"tqdm.refresh {SITE}tqdm/std.py:1340", "main /home/me/t.py:3")),
    (
        "a rank started by mp.spawn trains",
        "main",
        Stage.STEP,
        stack(
            "train /home/me/t.py:9",
            f"_wrap {SITE}torch/multiprocessing/spawn.py:90",
            f"BaseProcess.run {STD}multiprocessing/process.py:108",
            f"spawn_main {STD}multiprocessing/spawn.py:122",
        ),
    ),
    (
        "a torchrun launcher",
        "main",
        Stage.OTHER,
        stack(
            f"wait {STD}multiprocessing/connection.py:947",
            f"LocalElasticAgent._invoke_run {SITE}torch/distributed/elastic/agent/server/api.py:860",
        ),
    ),
]
