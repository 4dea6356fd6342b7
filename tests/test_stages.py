"""The stage classifier, stack by stack. Stacks are written innermost first, as ``function file:line [call]``."""

from __future__ import annotations

import pytest

from ioprobe.instrument.stages import Frame, Rule, classify, is_user_frame, known_call, module_of
from ioprobe.run import Stage

SITE = "/opt/venv/lib/python3.11/site-packages/"
STD = "/usr/lib/python3.11/"
FETCH = f"_MapDatasetFetcher.fetch {SITE}torch/utils/data/_utils/fetch.py:54"
LISTCOMP = f"_MapDatasetFetcher.fetch.<locals>.<listcomp> {SITE}torch/utils/data/_utils/fetch.py:54"
STREAM_FETCH = f"_IterableDatasetFetcher.fetch {SITE}torch/utils/data/_utils/fetch.py:33"
LOOP = f"_worker_loop {SITE}torch/utils/data/_utils/worker.py:374"
FORK = [
    f"BaseProcess.run {STD}multiprocessing/process.py:108",
    f"BaseProcess._bootstrap {STD}multiprocessing/process.py:314",
    f"Popen._launch {STD}multiprocessing/popen_fork.py:71",
    f"BaseProcess.start {STD}multiprocessing/process.py:121",
    f"_MultiProcessingDataLoaderIter.__init__ {SITE}torch/utils/data/dataloader.py:1176",
    f"DataLoader.__iter__ {SITE}torch/utils/data/dataloader.py:505",
    "main /home/me/train.py:30",
]
WORKER = [FETCH, LOOP, *FORK]
GETITEM = "Photos.__getitem__ /home/me/data.py:12"
NEXT = [
    f"_MultiProcessingDataLoaderIter._try_get_data {SITE}torch/utils/data/dataloader.py:1291",
    f"_MultiProcessingDataLoaderIter._get_data {SITE}torch/utils/data/dataloader.py:1464",
    f"_MultiProcessingDataLoaderIter._next_data {SITE}torch/utils/data/dataloader.py:1505",
    f"_BaseDataLoaderIter.__next__ {SITE}torch/utils/data/dataloader.py:725",
    "main /home/me/train.py:30",
]
QUEUE_GET = f"Queue.get {STD}multiprocessing/queues.py:113"
POLL = [
    f"_PollLikeSelector.select {STD}selectors.py:415",
    f"wait {STD}multiprocessing/connection.py:947",
    f"Connection._poll {STD}multiprocessing/connection.py:440",
]
IMPL = [
    f"Module._call_impl {SITE}torch/nn/modules/module.py:1789",
    f"Module._wrapped_call_impl {SITE}torch/nn/modules/module.py:1778",
]


def frame(text: str) -> Frame:
    call = ""
    if text.endswith("]"):
        text, _, call = text[:-1].rpartition(" [")
    function, place = text.split(" ", 1)
    file, _, line = place.rpartition(":")
    return Frame(function, file, int(line), call=call)


def stack(*parts: str | list[str]) -> list[Frame]:
    return [frame(t) for part in parts for t in ([part] if isinstance(part, str) else part)]


CASES: list[tuple[str, str, Stage, list[Frame]]] = [
    # (what the stack shows, role, stage, frames)
    ("opening a file", "worker", Stage.READ, stack(GETITEM + " [open]", WORKER)),
    ("reading from a handle", "worker", Stage.READ, stack(GETITEM + " [self.file.read]", WORKER)),
    ("pread", "worker", Stage.READ, stack(GETITEM + " [os.pread]", WORKER)),
    ("sleeping device in dataset code", "worker", Stage.READ, stack(GETITEM + " [time.sleep]", WORKER)),
    (
        "sleeping in a function called decode",
        "worker",
        Stage.DECODE,
        stack("decode /home/me/data.py:41 [time.sleep]", GETITEM, WORKER),
    ),
    (
        "sleeping in a function called augment",
        "worker",
        Stage.TRANSFORM,
        stack("augment /home/me/data.py:41 [time.sleep]", GETITEM, WORKER),
    ),
    ("a device class of the user", "worker", Stage.READ, stack("Device.read /home/me/dev.py:3", GETITEM, WORKER)),
    (
        "an fsspec range",
        "worker",
        Stage.READ,
        stack(
            f"Event.wait {STD}threading.py:629",
            f"sync {SITE}fsspec/asyn.py:95",
            f"S3File._fetch_range {SITE}s3fs/core.py:2300",
            GETITEM,
            WORKER,
        ),
    ),
    (
        "a socket under ssl",
        "worker",
        Stage.READ,
        stack(f"SSLSocket.read {STD}ssl.py:1134", f"HTTPResponse.read {STD}http/client.py:466", GETITEM, WORKER),
    ),
    ("urllib", "worker", Stage.READ, stack(f"urlopen {STD}urllib/request.py:216", GETITEM, WORKER)),
    ("a tar member", "worker", Stage.READ, stack(f"TarFile.next {STD}tarfile.py:2600", GETITEM, WORKER)),
    (
        "a numpy memmap",
        "worker",
        Stage.READ,
        stack(f"memmap.__getitem__ {SITE}numpy/_core/memmap.py:359", GETITEM, WORKER),
    ),
    ("a numpy array file", "worker", Stage.READ, stack(f"load {SITE}numpy/lib/_npyio_impl.py:455", GETITEM, WORKER)),
    ("hdf5", "worker", Stage.READ, stack(f"Dataset.__getitem__ {SITE}h5py/_hl/dataset.py:840", GETITEM, WORKER)),
    ("pathlib", "worker", Stage.READ, stack(f"Path.read_bytes {STD}pathlib.py:1050", GETITEM, WORKER)),
    (
        "webdataset's tar iterator, under its decoder",
        "worker",
        Stage.READ,
        stack(
            f"tar_file_iterator {SITE}webdataset/tariterators.py:170",
            f"_decode {SITE}webdataset/filters.py:300",
            STREAM_FETCH,
            LOOP,
        ),
    ),
    (
        "Pillow",
        "worker",
        Stage.DECODE,
        stack(f"ImageFile.load {SITE}PIL/ImageFile.py:425", f"Image.convert {SITE}PIL/Image.py:1067", GETITEM, WORKER),
    ),
    (
        "Pillow as py-spy shortens it",
        "worker",
        Stage.DECODE,
        stack(
            "ImageFile.load PIL/ImageFile.py:425",
            "D.__getitem__ toy.py:9",
            "_MapDatasetFetcher.fetch torch/utils/data/_utils/fetch.py:54",
            "_worker_loop torch/utils/data/_utils/worker.py:374",
            "main toy.py:16",
        ),
    ),
    ("cv2.imdecode", "worker", Stage.DECODE, stack(GETITEM + " [cv2.imdecode]", WORKER)),
    (
        "torchvision.io",
        "worker",
        Stage.DECODE,
        stack(f"decode_jpeg {SITE}torchvision/io/image.py:100", GETITEM, WORKER),
    ),
    ("zlib", "worker", Stage.DECODE, stack(GETITEM + " [zlib.decompress]", WORKER)),
    (
        "gzip over a tar",
        "worker",
        Stage.DECODE,
        stack(f"_GzipReader.read {STD}gzip.py:507", f"TarFile.next {STD}tarfile.py:2600", GETITEM, WORKER),
    ),
    (
        "zstandard through a user's function",
        "worker",
        Stage.DECODE,
        stack("unzip /home/me/z.py:4 [self.d.decompress]", GETITEM, WORKER),
    ),
    (
        "a parquet row group",
        "worker",
        Stage.DECODE,
        stack(f"ParquetFile.read_row_group {SITE}pyarrow/parquet/core.py:467", GETITEM, WORKER),
    ),
    ("json", "worker", Stage.DECODE, stack(f"JSONDecoder.decode {STD}json/decoder.py:337", GETITEM, WORKER)),
    (
        "a tokenizer",
        "worker",
        Stage.DECODE,
        stack(
            f"PreTrainedTokenizerFast._encode_plus {SITE}transformers/tokenization_utils_fast.py:600", GETITEM, WORKER
        ),
    ),
    ("soundfile", "worker", Stage.DECODE, stack(f"SoundFile.read {SITE}soundfile.py:895", GETITEM, WORKER)),
    ("a memory-mapped Arrow file", "worker", Stage.READ, stack(f"open_file {SITE}pyarrow/ipc.py:230", GETITEM, WORKER)),
    ("user arithmetic", "worker", Stage.TRANSFORM, stack("jitter /home/me/aug.py:4", GETITEM, WORKER)),
    ("__getitem__ itself", "worker", Stage.TRANSFORM, stack(GETITEM, WORKER)),
    (
        "torchvision transforms, which are modules",
        "worker",
        Stage.TRANSFORM,
        stack(f"resize {SITE}torchvision/transforms/functional.py:400", IMPL, GETITEM, WORKER),
    ),
    ("Pillow's resize", "worker", Stage.TRANSFORM, stack(f"Image.resize {SITE}PIL/Image.py:2100", GETITEM, WORKER)),
    (
        "torch arithmetic in a worker",
        "worker",
        Stage.TRANSFORM,
        stack(f"interpolate {SITE}torch/nn/functional.py:4000", GETITEM, WORKER),
    ),
    (
        "numpy in a user's decode",
        "worker",
        Stage.DECODE,
        stack(f"clip {SITE}numpy/_core/fromnumeric.py:2000", "decode_raw /home/me/d.py:3", GETITEM, WORKER),
    ),
    (
        "a dataset wrapped in Subset",
        "worker",
        Stage.READ,
        stack(
            "Store.__getitem__ /home/me/d.py:3 [open]",
            f"Subset.__getitem__ {SITE}torch/utils/data/dataset.py:410",
            LISTCOMP,
            WORKER,
        ),
    ),
    (
        "default_collate",
        "worker",
        Stage.COLLATE,
        stack(
            f"collate_tensor_fn {SITE}torch/utils/data/_utils/collate.py:270",
            f"default_collate {SITE}torch/utils/data/_utils/collate.py:398",
            WORKER,
        ),
    ),
    (
        "a user's collate function, whatever it calls",
        "worker",
        Stage.COLLATE,
        stack(f"pad {SITE}torch/nn/functional.py:5000", "pad_all /home/me/d.py:70", WORKER),
    ),
    ("a collate object", "worker", Stage.COLLATE, stack("Padder.__call__ /home/me/d.py:70", WORKER)),
    (
        "a collate function of an iterable dataset",
        "worker",
        Stage.COLLATE,
        stack("my_collate /home/me/d.py:70", STREAM_FETCH, LOOP),
    ),
    (
        "a collate function under any name, known by the call",
        "worker",
        Stage.COLLATE,
        stack("stack_up /home/me/d.py:70", STREAM_FETCH + " [self.collate_fn]", LOOP),
    ),
    (
        "a generator under any name is the dataset",
        "worker",
        Stage.TRANSFORM,
        stack("produce /home/me/d.py:70", STREAM_FETCH, LOOP),
    ),
    (
        "a decorated __getitem__ is the dataset",
        "worker",
        Stage.TRANSFORM,
        stack("Photos.__getitem__ /home/me/d.py:9", "retry.<locals>.wrapper /home/me/u.py:3", WORKER),
    ),
    (
        "a lock between workers",
        "worker",
        Stage.LOCK,
        stack(f"SemLock.__enter__ {STD}multiprocessing/synchronize.py:95", GETITEM, WORKER),
    ),
    ("a thread lock in C", "worker", Stage.LOCK, stack(GETITEM + " [self.lock.acquire]", WORKER)),
    ("a with statement on a lock", "worker", Stage.LOCK, stack(GETITEM + " [self.lock.__enter__]", WORKER)),
    (
        "a with statement on a lock, known by its expression",
        "worker",
        Stage.LOCK,
        stack(GETITEM + " [self._lock]", WORKER),
    ),
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
    ("a block is no lock", "worker", Stage.TRANSFORM, stack(GETITEM + " [self.block]", WORKER)),
    ("a file lock", "worker", Stage.LOCK, stack(f"BaseFileLock.acquire {SITE}filelock/_api.py:300", GETITEM, WORKER)),
    ("flock", "worker", Stage.LOCK, stack(GETITEM + " [fcntl.flock]", WORKER)),
    (
        "a manager's proxy",
        "worker",
        Stage.TRANSPORT,
        stack(
            f"Connection._recv {STD}multiprocessing/connection.py:395",
            f"BaseProxy._callmethod {STD}multiprocessing/managers.py:820",
            GETITEM,
            WORKER,
        ),
    ),
    ("an idle worker", "worker", Stage.WAIT, stack(POLL, QUEUE_GET, LOOP, FORK)),
    (
        "a worker that hands over",
        "worker",
        Stage.TRANSPORT,
        stack(f"Queue.put {STD}multiprocessing/queues.py:94", LOOP, FORK),
    ),
    ("worker_init_fn", "worker", Stage.STARTUP, stack("slow_start /home/me/t.py:36 [time.sleep]", LOOP, FORK)),
    (
        "a lazy import in a worker",
        "worker",
        Stage.STARTUP,
        stack(
            f"<module> {SITE}cv2/__init__.py:3",
            "_call_with_frames_removed <frozen importlib._bootstrap>:241",
            GETITEM,
            WORKER,
        ),
    ),
    (
        "a spawned worker unpickling its dataset",
        "worker",
        Stage.STARTUP,
        stack(f"_main {STD}multiprocessing/spawn.py:132", f"spawn_main {STD}multiprocessing/spawn.py:122"),
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


@pytest.mark.parametrize(("what", "role", "stage", "frames"), CASES, ids=[c[0] for c in CASES])
def test_a_stack_is_classed_by_what_it_shows(what: str, role: str, stage: Stage, frames: list[Frame]) -> None:
    found = classify(frames, role)
    assert (found.stage, bool(found.rule)) == (stage, True), found


@pytest.mark.parametrize(("what", "role", "stage", "frames"), CASES, ids=[c[0] for c in CASES])
def test_a_module_name_given_says_the_same_as_the_path(what: str, role: str, stage: Stage, frames: list[Frame]) -> None:
    named = [f._replace(module="__main__" if is_user_frame(f) else module_of(f.file)) for f in frames]
    assert classify(named, role).stage is stage


def test_the_hottest_user_frame_is_named_though_c_code_or_a_library_runs_in_it() -> None:
    asleep = classify(stack("Disk.read /home/me/dev.py:111 [time.sleep]", GETITEM, WORKER), "worker")
    assert (asleep.frame.function, asleep.frame.line, asleep.rule) == ("Disk.read", 111, "named for reading")
    pillow = classify(stack(f"ImageFile.load {SITE}PIL/ImageFile.py:425", GETITEM, WORKER), "worker")
    assert (pillow.frame.function, pillow.frame.file, pillow.rule) == (
        "Photos.__getitem__",
        "/home/me/data.py",
        "pillow",
    )


def test_without_a_user_frame_the_frame_that_decided_is_named() -> None:
    found = classify(stack(POLL, QUEUE_GET, LOOP, FORK), "worker")
    assert found.frame.function == "_worker_loop"


def test_the_users_rules_come_first() -> None:
    mine = [Rule("vendor decoder", Stage.DECODE, frames="fastjpg*:*"), Rule("my lock", Stage.LOCK, calls="*.guard")]
    frames = stack(f"run {SITE}fastjpg/core.py:3", GETITEM, WORKER)
    assert classify(frames, "worker").stage is Stage.TRANSFORM
    assert classify(frames, "worker", mine)[:2] == (Stage.DECODE, "vendor decoder")
    assert classify(stack(GETITEM + " [self.guard]", WORKER), "worker", mine)[:2] == (Stage.LOCK, "my lock")


def test_the_users_rules_may_name_files() -> None:
    in_file = [Rule("mine", Stage.READ, files="/home/me/data.py")]
    assert classify(stack(GETITEM, WORKER), "worker", in_file)[:2] == (Stage.READ, "mine")
    both = [Rule("mine", Stage.READ, frames="*:Photos.__getitem__", files="*/other.py")]
    assert classify(stack(GETITEM, WORKER), "worker", both).stage is Stage.TRANSFORM
    qualified = [Rule("mine", Stage.READ, frames="*:Photos.*", files="*/data.py")]
    assert classify(stack(GETITEM, WORKER), "worker", qualified).stage is Stage.READ


def test_our_own_frames_are_transparent() -> None:
    wrapped = stack(GETITEM + " [open]", f"timed {SITE}ioprobe/instrument/worker.py:9", WORKER)
    assert classify(wrapped, "worker").stage is Stage.READ


def test_frames_inherited_from_the_parent_do_not_count() -> None:
    found = classify(stack(GETITEM, WORKER), "worker")
    assert found.frame.file == "/home/me/data.py"
    assert classify(stack(LOOP, FORK), "worker")[:2] == (Stage.OTHER, "worker loop itself")


@pytest.mark.parametrize(
    ("file", "user"),
    [
        ("/home/me/train.py", True),
        ("train.py", True),
        ("project/data.py", True),
        (SITE + "torch/nn/modules/linear.py", False),
        ("torch/nn/modules/linear.py", False),
        (STD + "threading.py", False),
        ("threading.py", False),
        ("/src/pytorch/torch/utils/data/dataloader.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),
        ("", False),
        ("libc.so.6", False),
    ],
)
def test_user_code_is_told_from_libraries(file: str, user: bool) -> None:
    assert is_user_frame(Frame("f", file, 1)) is user


def test_calls_that_a_rule_knows_are_recognised() -> None:
    assert known_call("zlib.decompress")
    assert known_call("batch.to")
    assert not known_call("self.count")


def test_an_empty_stack_or_an_unknown_role_is_the_callers_bug() -> None:
    with pytest.raises(ValueError, match="at least one frame"):
        classify([], "worker")
    with pytest.raises(ValueError, match="role 'rank'"):
        classify(stack(GETITEM), "rank")
