"""Frames, calls and names of functions that tell the stage, as tables to read; the first match wins."""

from __future__ import annotations

import re

from ioprobe.instrument.stage_anchors import ANCHORS
from ioprobe.instrument.stage_rules import Rule
from ioprobe.run import Stage


def _data(name: str, stage: Stage, frames: str) -> Rule:
    return Rule(name, stage, frames, where="data")


# Innermost frame first: the first rule below that knows a frame decides.
LEAF_RULES: tuple[Rule, ...] = (
    # Between processes
    Rule(
        "tensor reductions",
        Stage.TRANSPORT,
        "torch.multiprocessing.*:* multiprocessing.reduction:* multiprocessing.resource_sharer:detach "
        "multiprocessing.resource_sharer:get_connection multiprocessing.resource_sharer:send "
        "multiprocessing.resource_sharer:register multiprocessing.resource_sharer:__init__",
    ),
    Rule("shared memory", Stage.TRANSPORT, "multiprocessing.shared_memory:* torch.storage:*share*"),
    Rule(
        "connection send or receive",
        Stage.TRANSPORT,
        "multiprocessing.connection:send* multiprocessing.connection:_send* multiprocessing.connection:recv* "
        "multiprocessing.connection:_recv* multiprocessing.connection:Client "
        "multiprocessing.connection:answer_challenge multiprocessing.connection:deliver_challenge",
    ),
    Rule("unpickling a message", Stage.TRANSPORT, "multiprocessing.queues:get", innermost=True),
    Rule("feeder sends", Stage.TRANSPORT, "multiprocessing.queues:put multiprocessing.queues:_feed", innermost=True),
    Rule("manager proxy", Stage.TRANSPORT, "multiprocessing.managers:*"),
    # Locks
    Rule(
        "lock between processes",
        Stage.LOCK,
        "multiprocessing.synchronize:acquire multiprocessing.synchronize:__enter__ multiprocessing.synchronize:wait "
        "multiprocessing.synchronize:wait_for",
    ),
    Rule("lock between threads", Stage.LOCK, "threading:acquire threading:__enter__"),
    Rule("file lock", Stage.LOCK, "filelock*:* fasteners.*:* portalocker*:* zc.lockfile*:* oslo_concurrency*:*"),
    # Main process
    Rule("waits on a producer's queue", Stage.WAIT, "queue:get multiprocessing.queues:get", where="main"),
    Rule(
        "waits for a pool's result",
        Stage.WAIT,
        "multiprocessing.pool:next multiprocessing.pool:get multiprocessing.pool:wait concurrent.futures._base:result "
        "concurrent.futures._base:wait concurrent.futures._base:as_completed",
        where="main",
    ),
    Rule(
        "collective",
        Stage.COMMUNICATION,
        "torch.distributed.distributed_c10d:* torch.distributed._functional_collectives:* "
        "torch.distributed.c10d_logger:*  "
        "torch.distributed.nn.*:* torch.nn.parallel.distributed:_sync* torch.nn.parallel.distributed:_pre_forward "
        "torch.distributed.algorithms.*:* torch.distributed.fsdp.*:*unshard* torch.distributed.fsdp.*:*all_gather* "
        "torch.distributed.fsdp.*:*reduce_scatter* torch.distributed.tensor*:*redistribute* "
        "torch.distributed.utils:*  "
        "horovod.*:* deepspeed.comm.*:* nccl*:* mpi4py*:*",
        where="main",
    ),
    Rule("transfer helper", Stage.TRANSFER, "torch.cuda.streams:wait_stream torch._utils:_to", where="main"),
    # Reading
    _data(
        "remote file system",
        Stage.READ,
        "fsspec*:* s3fs*:* gcsfs*:* adlfs*:* obstore*:* ossfs*:* smart_open*:* boto3*:* botocore*:* s3transfer*:* "
        "s3torchconnector*:* google.cloud.storage*:* azure.storage*:* minio*:* huggingface_hub*:* "
        "paramiko*:* hdfs*:*",
    ),
    _data(
        "http client",
        Stage.READ,
        "urllib*:* requests*:* http.client:* httpx*:* httpcore*:* aiohttp*:* aiobotocore*:* anyio*:* "
        "asyncio*:* ssl:* socket:*",
    ),
    _data("reads below gzip", Stage.READ, "gzip:_PaddedFile* tarfile:_read_gzip_header"),
    # Decoding
    _data(
        "pillow",
        Stage.DECODE,
        "PIL.*Plugin*:* PIL.ImageFile:* PIL.Image:open PIL.Image:_open_core PIL.Image:preinit PIL.Image:init "
        "PIL.Image:load PIL.Image:convert PIL.Image:draft PIL.Image:verify",
    ),
    _data(
        "image decoder",
        Stage.DECODE,
        "torchvision.io*:* turbojpeg*:* simplejpeg*:* imageio*:* skimage.io*:* skimage._shared*:* tifffile*:* "
        "pydicom*:* nibabel*:* rasterio*:* imagecodecs*:* pyvips*:* kornia_rs*:* nvidia.nvjpeg*:* "
        "cv2*:imread cv2*:imdecode",
    ),
    _data(
        "audio or video decoder",
        Stage.DECODE,
        "soundfile*:* torchaudio.backend*:* torchaudio._backend*:* torchaudio:load librosa.core.audio:* audioread*:* "
        "av*:* decord*:* torchcodec*:* moviepy*:* pydub*:*",
    ),
    _data(
        "decompression",
        Stage.DECODE,
        "gzip:* bz2:* lzma:* zlib:* _compression:* compression.*:* zstandard*:* lz4*:* blosc*:* "
        "numcodecs*:* zarr.codecs*:*  "
        "snappy*:* brotli*:*",
    ),
    _data(
        "parquet decode", Stage.DECODE, "pyarrow.parquet*:* pyarrow._parquet*:* fastparquet*:* polars*:* pyarrow.csv*:*"
    ),
    _data(
        "parsing",
        Stage.DECODE,
        "json*:* orjson*:* ujson*:* msgpack*:* pickle:* cbor*:* csv:* xml*:* lxml*:* yaml*:* "
        "base64:* google.protobuf*:*  "
        "tfrecord*:* avro*:* fastavro*:* torch.serialization:load torch.serialization:_load "
        "torch.serialization:_legacy_load  "
        "torch.serialization:* webdataset.autodecode:* webdataset.cborsiterators:* pandas.io*:* struct:*",
    ),
    _data(
        "tokenizer",
        Stage.DECODE,
        "tokenizers*:* transformers.tokenization*:* transformers.*.tokenization*:* sentencepiece*:* "
        "tiktoken*:* sacremoses*:*",
    ),
    _data(
        "dataset library decodes",
        Stage.DECODE,
        "datasets.features*:* datasets.formatting*:* streaming.base.format*:*decode*",
    ),
    _data("litdata decodes", Stage.DECODE, "litdata.streaming.serializers:* litdata.streaming.compression:*"),
    # Containers and files
    Rule(
        "waits for a process of its own",  # nearly always a decoder: ffmpeg, sox, gzip; who fetches so, says so
        Stage.DECODE,
        "subprocess:* asyncio.subprocess:*",
        where="data",
        weak=True,
    ),
    _data(
        "tar",
        Stage.READ,
        "tarfile:* webdataset.tariterators:* webdataset.gopen:* webdataset.cache:* webdataset.shardlists:*",
    ),
    _data("zip", Stage.READ, "zipfile*:*"),
    _data(
        "memory map or array file",
        Stage.READ,
        "mmap:* numpy.*memmap*:* numpy.memmap:* numpy.lib*npyio*:* numpy.lib*format*:* h5py*:* zarr*:* netCDF4*:* "
        "xarray*:* lmdb*:* leveldb*:* sqlite3*:* tiledb*:*",
    ),
    _data("arrow", Stage.READ, "pyarrow*:*"),
    _data(
        "dataset library reads",
        Stage.READ,
        "datasets.table:* datasets.arrow*:* datasets.download*:* datasets.packaged*:*",
    ),
    _data(
        "streaming library reads",
        Stage.READ,
        "streaming.base.storage*:* streaming.base.stream:* streaming.base.format*:* "
        "streaming.base.dataset:prepare_shard  "
        "streaming.base.dataset:_wait* litdata.streaming.downloader:* litdata.streaming.item_loader:* "
        "litdata.streaming.reader:* torchdata.datapipes.iter.load*:*",
    ),
    _data(
        "file",
        Stage.READ,
        "pathlib*:* io:* _pyio:* os:* posixpath:* genericpath:* shutil:* tempfile:* codecs:* linecache:* glob:*",
    ),
    # Transforms
    _data(
        "transform library",
        Stage.TRANSFORM,
        "torchvision.transforms*:* albumentations*:* albucore*:* imgaug*:* kornia*:* torchaudio.transforms*:* "
        "torchaudio.functional*:* librosa*:* monai*:* audiomentations*:* volumentations*:* skimage*:* PIL.*:*",
    ),
    Rule(
        "arithmetic",
        Stage.TRANSFORM,
        "cv2*:* numpy*:* scipy*:* torch.nn*:* torch.functional:* torch._tensor*:* pandas*:* random:*",
        where="data",
        weak=True,
    ),
)

CALL_RULES: tuple[Rule, ...] = (
    Rule(
        "lock call",
        Stage.LOCK,
        calls="*.acquire *.acquire_* lock *.lock *_lock *.mutex *_mutex *.semaphore *lock.__enter__ "
        "*mutex.__enter__ *semaphore.__enter__ fcntl.flock  "
        "fcntl.lockf fcntl.fcntl",
    ),
    Rule(
        "decompress call",
        Stage.DECODE,
        calls="zlib.decompress* gzip.decompress bz2.decompress lzma.decompress zstd.* zstandard.* "
        "*.decompress *.decompressobj  "
        "lz4.* snappy.* brotli.* blosc*.*",
        where="data",
    ),
    Rule(
        "decode call",
        Stage.DECODE,
        calls="cv2.imdecode cv2.imread *.imdecode *.decode_jpeg *.decode_image *.decode_png *.jpeg.decode "
        "torchvision.io.*  "
        "simplejpeg.* *.decode Image.open PIL.Image.open av.open decord.* soundfile.read sf.read torchaudio.load",
        where="data",
    ),
    Rule(
        "parquet call",
        Stage.DECODE,
        calls="*.read_row_group* *.iter_batches pq.read_* *.to_pylist *.to_pandas",
        where="data",
    ),
    Rule(
        "parse call",
        Stage.DECODE,
        calls="json.loads json.load orjson.loads ujson.loads msgpack.* pickle.loads pickle.load "
        "marshal.loads torch.load  "
        "struct.unpack* base64.* *.encode_batch *.encode tokenizer tokenizer.* *.tokenizer *tokenize "
        "*.ParseFromString",
        where="data",
    ),
    Rule("shared memory call", Stage.TRANSPORT, calls="*.share_memory_ *.share_memory *.dumps_for_queue"),
    Rule(
        "read call",
        Stage.READ,
        calls="open io.open os.open os.read os.pread os.preadv os.stat os.listdir os.scandir os.lseek "
        "*.read *.readinto  "
        "*.readline *.readlines *.read_bytes *.read_text *.pread *.recv *.recv_into *.readall *.read_at *.get_object "
        "*.seek np.load numpy.load np.fromfile numpy.fromfile np.memmap numpy.memmap mmap.mmap "
        "*.urlopen requests.get  "
        "*.cat_file *.get_range *.cat_ranges pa.memory_map *.open_input_file select.select *.poll *.select",
        where="data",
    ),
    Rule("sleeps, as a device would", Stage.READ, calls="time.sleep sleep asyncio.sleep", where="data", weak=True),
    Rule("pinning call", Stage.TRANSFER, calls="*.pin_memory", where="main"),
    Rule("copy to device call", Stage.TRANSFER, calls="*.to *.cuda *.xpu *.npu *.mps *.hpu *.to_device", where="main"),
    Rule(
        "collective call",
        Stage.COMMUNICATION,
        calls="dist.* torch.distributed.* *.all_reduce *.allreduce *.all_gather*",
        where="main",
    ),
    Rule(
        "checkpoint call", Stage.CHECKPOINT, calls="torch.save *.save_checkpoint save_file safetensors.*", where="main"
    ),
)

# What a user's own function is called, in dataset code; the words that people use for it.
NAME_HINTS: tuple[Rule, ...] = (
    Rule(
        "named for decoding",
        Stage.DECODE,
        "*decod* *decompress* *parse* *unpack* *tokeniz* *deserial* *imread* *unpickle*",
    ),
    Rule("named for a lock", Stage.LOCK, "*acquire* *with_lock* *_lock lock"),
    Rule("named for collation", Stage.COLLATE, "*collat* *batchify* pad_batch"),
    Rule(
        "named for a transform",
        Stage.TRANSFORM,
        "*transform* *augment* *aug *_aug_* *resize* *crop* *normali?e* *preprocess* *flip* *noise*",
    ),
    Rule(
        "named for reading",
        Stage.READ,
        "read* *_read *_read_* *download* *fetch* *load_file* *load_bytes* *open_file* open *_open "
        "get_object pread *from_disk*",
    ),
)

# Their own waiting (``waiter.acquire()`` in Condition.wait) says nothing: what asked for it does.
WAITING_MODULES = (
    "threading:* queue:* multiprocessing.*:* concurrent.*:* asyncio*:* selectors:* socketserver:* subprocess:*"
)

# Where a thread that has nothing to do is found.
IDLE_THREAD = (
    "threading:wait threading:_wait_for_tstate_lock queue:get selectors:select socket:accept "
    "concurrent.futures.thread:_worker multiprocessing.pool:_handle_* multiprocessing.pool:_wait_for_updates"
)

# The threads that carry tasks and results for a pool of processes, and where they stand with nothing to carry.
# Unpickling a result runs in ``recv`` itself, and is work.
POOL_THREAD = "multiprocessing.pool:_handle_* concurrent.futures.process:run"
POOL_THREAD_BLOCKED = (
    "multiprocessing.connection:_recv multiprocessing.connection:_send multiprocessing.connection:_poll "
    "multiprocessing.connection:wait selectors:select multiprocessing.popen_*:poll multiprocessing.popen_*:wait"
)

DATASET_METHODS = frozenset({"__getitem__", "__getitems__", "__next__", "__iter__", "<listcomp>", "<genexpr>"})

# Installed packages whose shortened paths (``torch/nn/...``) are to be known as no user's code.
WELL_KNOWN = frozenset(
    re.split(r"[.*:]", glob)[0]
    for table in (ANCHORS, LEAF_RULES)
    for row in table
    for glob in row.frames.split()
    if not glob.startswith("*")
) | {
    "torch",
    "numpy",
    "torchdata",
    "lightning",
    "pytorch_lightning",
    "transformers",
    "accelerate",
    "py_spy",
    "msgspec",
    "litdata",
}
