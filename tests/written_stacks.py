"""Stacks as they are written in tests: innermost first, as ``function file:line [call]``."""

from __future__ import annotations

from ioprobe.instrument.stages import Frame

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
