"""The ranks of a job meet through a small key-value store: barriers, signs of life, and who has left.

Under torchrun it is the store of torchrun's own agent, elsewhere rank 0 hosts one beside MASTER_PORT, which stays free
for the user's own process group. Every wait is bounded: a rank that stops giving signs of life, or says that it
leaves, is named to all others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from ioprobe.analysis.place import Place
from ioprobe.errors import MeasureError
from ioprobe.probe import protocol

BEAT_S = 1.0
SILENCE_S = 20.0
"""A rank without a sign of life for this long is gone [s]; a busy host may keep a thread off the cores for some."""
_SILENCE_AT_END_S = 6.0
_POLL_S = 0.02
_LOOK_S = 0.5
_CHUNK_BYTES = 1 << 20


class Departure(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that left before the end."""

    rank: int
    kind: str
    """``error`` (it could not begin), ``broken`` (loader or step failed), ``interrupted``, ``silent``, or ``followed``
    (another one left before)."""
    message: str = ""
    hint: str = ""
    phase: str = ""
    where: str = ""


class PeerGone(Exception):
    """Other ranks left."""

    def __init__(self, departures: Sequence[Departure]) -> None:
        super().__init__("; ".join(f"rank {d.rank}: {d.message}" for d in departures))
        self.departures = tuple(departures)


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """What each rank tells the others at first."""

    hostname: str
    node: str
    """Tells hosts of the same name apart."""
    cores: tuple[int, ...] = ()
    """CPU mask; empty where the system does not tell."""
    folder: str = ""
    """Where rank 0 keeps the run."""


class Team:
    """All ranks of the job, as seen by one of them.

    Args:
        place: Where this process stands.
        patience_s: How long to wait for ranks to begin, or to come to a meeting, while they are alive [s].

    Raises:
        MeasureError: the rendezvous cannot be reached.
    """

    def __init__(self, place: Place, *, patience_s: float = 60.0) -> None:
        self.place, self.patience_s = place, patience_s
        self.rank, self.size = place.rank, place.world_size
        self.hellos: list[Hello] = []
        self.departures: dict[int, Departure] = {}
        self._meetings = 0
        self._seen = 0
        self._left = False
        self._looked = 0.0
        self._beats: dict[int, tuple[bytes, float]] = {}
        self._ended = threading.Event()
        self._port = place.port if place.agent_store else place.port + (1 if place.port < 65535 else -1)
        self._prefix = f"ioprobe/{place.attempt}"
        self._store = self._connect()
        threading.Thread(target=self._beat, name="ioprobe-beat", daemon=True).start()

    def _connect(self) -> Any:
        import torch.distributed

        distributed: Any = torch.distributed
        hosts = self.rank == 0 and not self.place.agent_store
        wait = timedelta(seconds=self.patience_s)
        try:
            store = distributed.TCPStore(self.place.address, self._port, None, hosts, wait, wait_for_workers=False)
        except (RuntimeError, ValueError) as error:
            what = "open" if hosts else "reach"
            raise MeasureError(
                f"cannot {what} the ranks' rendezvous at {self.place.address}:{self._port}: {_first_line(error)}",
                hint="start all ranks at about the same time; another MASTER_PORT helps where the port is taken",
            ) from None
        return distributed.PrefixStore(self._prefix, store)

    @property
    def member(self) -> protocol.Team:
        """What the measuring child needs to meet the others."""
        return protocol.Team(
            rank=self.rank,
            address=self.place.address,
            port=self._port,
            prefix=self._prefix,
            patience_s=self.patience_s,
        )

    @property
    def local_ranks(self) -> list[int]:
        """Ranks on this host that may use the same cores, this one among them."""
        mine = self.hellos[self.rank]
        return [
            rank
            for rank, hello in enumerate(self.hellos)
            if rank == self.rank
            or (
                (hello.hostname, hello.node) == (mine.hostname, mine.node)
                and (not mine.cores or not hello.cores or bool(set(mine.cores) & set(hello.cores)))
            )
        ]

    def greet(self, hello: Hello) -> None:
        """Wait until all ranks have begun.

        Raises:
            MeasureError: some did not come; they are named.
            PeerGone: some cannot begin.
        """
        values = self.meet("hello", msgspec.json.encode(hello))
        self.hellos = [msgspec.json.decode(value, type=Hello) for value in values]
        now = time.monotonic()
        self._beats = {rank: (b"", now) for rank in range(self.size) if rank != self.rank}

    def meet(self, name: str, value: bytes = b"") -> list[bytes]:
        """Wait for all ranks and return what each brought, by rank.

        Raises:
            PeerGone: some have left instead.
        """
        self._meetings += 1
        key = f"meet/{self._meetings}/{name}"
        self._put(f"{key}/{self.rank}", value)
        if self.rank == 0:
            keys = [f"{key}/{rank}" for rank in range(self.size)]
            self._wait(keys)
            values = [self._take(k) for k in keys]
            self._put(f"{key}/all", msgspec.json.encode(values))
            return values
        self._wait([f"{key}/all"])
        found: list[bytes] = msgspec.json.decode(self._take(f"{key}/all"), type=list[bytes])
        return found

    def bring(self, name: str, data: bytes) -> list[bytes]:
        """Bring something large to rank 0 and return there what each rank brought; nothing elsewhere."""
        if self.rank > 0:
            self._put_large(f"{name}/{self.rank}", data)
        self.meet(name)
        if self.rank > 0:
            return []
        return [data, *(self._take_large(f"{name}/{rank}") for rank in range(1, self.size))]

    def most(self, name: str, mine: int) -> int:
        """Return the largest of the ranks' numbers."""
        return max(int(value) for value in self.meet(name, str(mine).encode()))

    def _wait(self, keys: Sequence[str]) -> None:
        end = time.monotonic() + self.patience_s
        while not self._has(*keys):
            self.watch()
            if time.monotonic() > end:
                missing = [k.rpartition("/")[2] for k in keys if not self._has(k)]
                who = "rank 0" if missing == ["all"] else "rank " + ", ".join(missing)
                raise MeasureError(
                    f"{who} of {self.size} did not come within {self.patience_s:.0f} s",
                    hint="start all ranks at about the same time, or raise --timeout",
                )
            time.sleep(_POLL_S)

    def watch(self) -> None:
        """Look whether all are still there; cheap enough to be called often.

        Raises:
            PeerGone: some have left, or give no sign of life.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        found = self._departed()
        if not found:
            found = [
                Departure(rank=rank, kind="silent", message=f"gave no sign of life for {SILENCE_S:.0f} s")
                for rank in self._silent(SILENCE_S)
            ]
            for departure in found:
                self._announce(departure)
        if found:
            self.departures |= {d.rank: d for d in found}
            raise PeerGone(found)

    def _departed(self) -> list[Departure]:
        count = int(self._ask(lambda: self._store.add("gone", 0)))
        fresh = []
        while self._seen < count:
            key = f"gone/{self._seen + 1}"
            if not self._has(key):
                break  # it is being written
            self._seen += 1
            departure = msgspec.json.decode(self._take(key), type=Departure)
            self.departures.setdefault(departure.rank, departure)
            if departure.rank != self.rank:
                fresh.append(departure)
        return fresh

    def _silent(self, limit_s: float) -> list[int]:
        """Return ranks without a sign of life; rank 0 looks after all, the others after rank 0."""
        now = time.monotonic()
        found = []
        for rank in range(self.size) if self.rank == 0 else (0,):
            if rank == self.rank or rank not in self._beats:
                continue
            key = f"beat/{rank}"
            beat = self._take(key) if self._has(key) else b""
            if beat != self._beats[rank][0]:
                self._beats[rank] = (beat, now)
            elif now - self._beats[rank][1] > limit_s:
                found.append(rank)
        return found

    def leave(self, departure: Departure) -> None:
        """Tell the others that this rank goes no further; only the first time counts."""
        if not self._left:
            self._left = True
            self.departures[self.rank] = departure
            try:
                self._announce(departure)
            except PeerGone:
                pass  # nobody is left to be told

    def _announce(self, departure: Departure) -> None:
        number = self._ask(lambda: self._store.add("gone-number", 1))
        self._put(f"gone/{number}", msgspec.json.encode(departure))
        self._ask(lambda: self._store.add("gone", 1))

    def hand_over(self, data: bytes) -> None:
        """Leave this rank's run for rank 0."""
        self._put_large(f"run/{self.rank}", data)

    def collect(self) -> dict[int, bytes]:
        """Return the other ranks' runs; a rank that is gone has none.

        Bounded: a rank is waited for only while it gives signs of life, and no longer than the patience.
        """
        found: dict[int, bytes] = {}
        end = time.monotonic() + self.patience_s
        while len(found) < self.size - 1:
            silent = self._silent(_SILENCE_AT_END_S)
            for rank in range(self.size):
                key = f"run/{rank}/count"
                if rank == self.rank or rank in found or not self._has(key):
                    continue
                found[rank] = self._take_large(f"run/{rank}")
            missing = [rank for rank in range(self.size) if rank != self.rank and rank not in found]
            if all(rank in silent for rank in missing) or time.monotonic() > end:
                break
            time.sleep(5 * _POLL_S)
        self._departed()
        return found

    def finish(self, code: int) -> None:
        """Tell the others that rank 0 is done, and with which exit code; waits a moment until they know."""
        self._put("done", str(code).encode())
        if self.place.agent_store:
            return
        end = time.monotonic() + 5.0
        others = [f"bye/{rank}" for rank in range(1, self.size)]
        while time.monotonic() < end:
            left = [key for key in others if not self._has(key)]
            if not left or len(self._silent(_SILENCE_AT_END_S)) >= len(left):
                return
            time.sleep(_POLL_S)

    def wait_until_done(self) -> int | None:
        """Return the exit code that rank 0 gave out; None where rank 0 is gone."""
        try:
            while not self._has("done"):
                if 0 in self._silent(_SILENCE_AT_END_S):
                    return None
                time.sleep(5 * _POLL_S)
            code = int(self._take("done"))
            self._put(f"bye/{self.rank}", b"1")
        except PeerGone:
            return None
        return code

    def is_first_survivor(self) -> bool:
        """Whether all ranks before this one are known to be gone, with rank 0."""
        alive = []
        for rank in range(1, self.rank):
            try:
                key = f"run/{rank}/count"
                if self._has(key):
                    alive.append(rank)
            except PeerGone:
                return self.rank == 1
        return not alive

    def end(self) -> None:
        """Give no more signs of life."""
        self._ended.set()

    def _beat(self) -> None:
        count = 0
        while not self._ended.is_set():
            count += 1
            try:
                self._store.set(f"beat/{self.rank}", str(count))
            except RuntimeError:
                return  # the store is gone; the main thread will see
            self._ended.wait(BEAT_S)

    def _put(self, key: str, value: bytes) -> None:
        # An empty value cannot be told from a missing one by every backend.
        self._ask(lambda: self._store.set(key, b"=" + value))

    def _has(self, *keys: str) -> bool:
        return bool(self._ask(lambda: self._store.check(list(keys))))

    def _take(self, key: str) -> bytes:
        return bytes(self._ask(lambda: self._store.get(key))).removeprefix(b"=")

    def _put_large(self, key: str, data: bytes) -> None:
        chunks = [data[at : at + _CHUNK_BYTES] for at in range(0, len(data), _CHUNK_BYTES)] or [b""]
        for number, chunk in enumerate(chunks):
            self._put(f"{key}/{number}", chunk)
        self._put(f"{key}/count", str(len(chunks)).encode())

    def _take_large(self, key: str) -> bytes:
        return b"".join(self._take(f"{key}/{number}") for number in range(int(self._take(f"{key}/count"))))

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except RuntimeError as error:
            gone = Departure(rank=0, kind="silent", message=f"the rendezvous is gone ({_first_line(error)})")
            self.departures.setdefault(0, gone)
            raise PeerGone([gone]) from None


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0][:160] if str(error) else type(error).__name__
