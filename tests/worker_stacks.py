"""What a worker does, stack by stack, and the stage that it is."""

from __future__ import annotations

from written_stacks import FORK, GETITEM, IMPL, LISTCOMP, LOOP, POLL, QUEUE_GET, SITE, STD, STREAM_FETCH, WORKER, stack

from ioprobe.instrument.stages import Frame
from ioprobe.run import Stage

WORKER_CASES: list[tuple[str, str, Stage, list[Frame]]] = [
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
        "waiting for a decoder process",
        "worker",
        Stage.DECODE,
        stack(
            f"Popen.communicate {STD}subprocess.py:1196 [self.stdout.read]",
            f"run {STD}subprocess.py:550",
            GETITEM,
            WORKER,
        ),
    ),
    (
        "a download by a process",
        "worker",
        Stage.READ,
        stack(f"Popen._wait {STD}subprocess.py:2000 [os.waitpid]", "download /home/me/data.py:9", GETITEM, WORKER),
    ),
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
]
