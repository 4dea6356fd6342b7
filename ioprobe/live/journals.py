"""What the processes of a launched job wrote down, read back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ioprobe.live.hooks.journal import SUFFIX, Record, read_records

_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed")


@dataclass
class Iterated:
    """One iterator over a loader; times on the monotonic clock [s]."""

    loader: int
    """Number of the loader within its process."""
    begin_s: float
    init_s: float = 0.0
    rows: dict[str, list[float]] = field(default_factory=dict)
    """Columns, one entry per batch."""
    ends: list[float] = field(default_factory=list)
    end_calls: list[float] = field(default_factory=list)
    resets: list[tuple[float, float]] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    in_main_thread: bool = True
    workers: list[dict[str, float]] = field(default_factory=list)
    times: dict[int, tuple[float, float]] = field(default_factory=dict)
    stacks: dict[int, str] = field(default_factory=dict)


@dataclass
class Known:
    """One loader of a process."""

    identity: int
    name: str
    """What the code calls it."""
    facts: dict[str, Any] | None
    head: dict[str, Any]


@dataclass
class JobProcess:
    """One Python process of the job."""

    head: dict[str, Any] = field(default_factory=dict)
    loaders: list[Known] = field(default_factory=list)
    iterators: dict[int, Iterated] = field(default_factory=dict)
    stacks: str = ""
    idle_s: dict[int, float] = field(default_factory=dict)
    """Accelerator idle before the step on a batch [s], by the batch's number."""
    traces: list[str] = field(default_factory=list)
    full: bool = False
    """Whether it stopped observing because it had seen enough."""
    ended: bool = False
    """Whether it wrote its end."""

    @property
    def pid(self) -> int:
        """Process id."""
        return int(self.head.get("pid", 0))

    @property
    def batches(self) -> int:
        """Batches of all its loaders."""
        return sum(len(i.rows.get("call_s", [])) for i in self.iterators.values())

    @property
    def is_launcher(self) -> bool:
        """Whether it only starts others."""
        words = [Path(str(word)).name for word in self.head.get("argv", [])[:4]]
        return not self.batches and any(word in _LAUNCHERS for word in words)


def read_folder(folder: Path) -> list[JobProcess]:
    """Return the processes that wrote, in order of their start; files that cannot be read are left out."""
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        try:
            process = read_process(path.read_bytes())
        except OSError:
            continue
        if process.head:
            found.append(process)
    return sorted(found, key=lambda p: float(p.head.get("begin_s", 0.0)))


def read_process(data: bytes) -> JobProcess:
    """Return what one journal holds."""
    process = JobProcess()
    newest: dict[int, int] = {}
    for record in read_records(data):
        kind = record.head.get("kind")
        if kind == "process":
            process.head = dict(record.head)
        elif kind == "rank":
            process.head |= {k: v for k, v in record.head.items() if k != "kind"}
        elif kind == "loader":
            head = record.head
            newest[int(head["loader"])] = len(process.loaders)
            process.loaders.append(Known(int(head["loader"]), str(head.get("name", "")), head.get("facts"), head))
        elif kind == "iterator":
            number = newest.get(int(record.head["loader"]), 0)
            process.iterators[int(record.head["trace"])] = Iterated(number, float(record.head["begin_s"]))
        else:
            _take(process, record)
    return process


def _take(process: JobProcess, record: Record) -> None:
    head = record.head
    kind = head.get("kind")
    if kind == "stacks":
        process.stacks = str(head["rows"])
    elif kind == "device":
        numbers = (int(n) for n in record.columns["number"])
        process.idle_s.update(zip(numbers, record.columns["idle_s"], strict=True))
    elif kind == "trace-file":
        process.traces.append(str(head["name"]))
    elif kind == "full":
        process.full = True
    elif kind == "end":
        process.ended = True
    iterator = process.iterators.get(int(head.get("trace", -1)))
    if iterator is None:
        return
    if kind == "batches":
        iterator.init_s, iterator.pids = float(head["init_s"]), list(head["pids"])
        iterator.in_main_thread = bool(head["main_thread"])
        for name, values in record.columns.items():
            iterator.rows.setdefault(name, []).extend(values)
        iterator.ends += head.get("ends", [])
        iterator.end_calls += head.get("end_calls", [])
        iterator.resets += [(float(a), float(b)) for a, b in head.get("resets", [])]
        iterator.sizes += [(int(a), int(b)) for a, b in head.get("sizes", [])]
    elif kind == "worker":
        worker = int(head["worker"])
        iterator.times[worker] = (float(head["times"][0]), float(head["times"][1]))
        names = list(record.columns)
        for row in zip(*record.columns.values(), strict=True):
            iterator.workers.append({"worker": float(worker), **dict(zip(names, row, strict=True))})
    elif kind == "worker-stacks":
        iterator.stacks[int(head["worker"])] = str(head["rows"])
