"""The event engine of :mod:`ioprobe.model.simulate`: queues and the handlers of every event."""

from __future__ import annotations

import math
from collections import deque
from heapq import heappop, heappush

import numpy as np

from ioprobe.model.cores import Cores
from ioprobe.model.profile import CONVOY_S
from ioprobe.model.simulate import Event, Row, System, Trace

NEW, AGAIN = 2, 1
"""A worker before its first batch: of its life, of a later epoch."""


class Engine(Cores):
    """One replay; :meth:`run` does it."""

    def __init__(self, system: System, batches: int, record: bool, start_full: bool) -> None:
        super().__init__(system)
        s = self.s
        self.batches = batches
        self.log: list[Event] | None = [] if record else None
        n = s.num_workers
        self.tasks: list[deque[int]] = [deque() for _ in range(n)]
        self.outbox: list[deque[int]] = [deque() for _ in range(n)]
        self.feeding = [False] * n
        self.shares = [0] * n
        self.idle = [False] * n
        self.computing = [False] * n
        self.current = [0] * n
        self.count = [0] * n
        self.piece: list[Row] = [(0.0, 0.0, 0.0)] * n
        self.left = [0] * n
        self.outstanding = [0] * n
        self.active = [True] * n
        self.ended = [False] * n
        self.servers = [0.0] * s.serial_channels
        self.hand_over = s.serial_hand_over_s / s.segments
        self.lock_busy = 0
        self.lock_queue: deque[int] = deque()
        self.results: deque[tuple[int, int]] = deque()
        self.kept: set[int] = set()
        self.owner: dict[int, int] = {}
        self.started = [False] * n
        self.fresh = [NEW] * n
        self.waiting = False
        self.receiving: tuple[int, int, float] | None = None
        self.wait_full = start_full
        self.epoch = 0
        self.sent = self.due = self.cycle = self.taken = 0
        self.finished = self.most = 0
        self.total = self._epoch_length()
        self.calls: list[float] = []
        self.returns: list[float] = []
        self.ends: list[float] = []
        self.indices: list[int] = []
        self.epochs: list[int] = []
        self.epoch_base = 0
        self.stop = False

    def run(self) -> Trace:
        self.calls.append(0.0)
        self._open_epoch(True)
        timed, running = self.timed, self.running
        while not self.stop and (timed or running):
            rate = self.rate
            at = self.t + (running[0][0] - self.v) / rate if running and rate > 0 else math.inf
            if timed and timed[0][0] <= at:
                at, _, handler, argument = heappop(timed)
                self.v += (at - self.t) * rate
                self.t = at
            else:
                if at == math.inf:
                    break
                self.v, _, handler, argument, width = heappop(running)
                self.t = at
                self.load -= width
                self.rate = self.rates[self.main_runs][self.load]
            handler(argument)
        # What is still planned holds this engine's own methods: without them it goes at once, not by the collector.
        timed.clear()
        running.clear()
        done = len(self.returns)
        ends = self.ends + self.returns[len(self.ends) :]
        return Trace(
            np.array(self.calls[:done]),
            np.array(self.returns),
            np.array(ends[:done]),
            np.array(self.indices, dtype=np.int64),
            np.array(self.epochs, dtype=np.int64),
            self.most,
            self.cpu_used,
            tuple(self.log or ()),
        )

    # -- workers ----------------------------------------------------------

    def _ready(self, w: int) -> None:
        self.started[w] = True
        self.idle[w] = True
        if self.tasks[w]:
            self._begin(w)

    def _begin(self, w: int) -> None:
        self.idle[w] = False
        task = self.tasks[w].popleft()
        k = self.count[w]
        self.count[w] = k + 1
        self.current[w] = task
        rows = self.s.rows
        if len(rows) == 1:
            series = rows[0]
            row = series[(self.epoch_base + task) % len(series)]
        else:
            series = rows[w % len(rows)]
            row = series[(k + w // len(rows)) % len(series)]
        limit = self.s.worker_batches
        if limit is not None and k >= limit[w % len(limit)]:
            # The end of its data is a message like a batch; what else was asked of it is never answered.
            if not self.ended[w]:
                self.ended[w] = True
                self.current[w] = -1 - self.epoch
                self._at(0.0, self._made, w)
            return
        if self.log is not None:
            self.log.append(Event(self.t, "start", w, task))
        cpu, blocked, serial = row
        if self.fresh[w]:
            new, self.fresh[w] = self.fresh[w] == NEW, 0
            cpu += self.s.first_extra_s if new else self.s.again_extra_s
            blocked += self.s.first_blocked_s if new else self.s.again_blocked_s
        if blocked or serial:
            n = self.s.segments
            self.piece[w] = (cpu / n, blocked / n, serial / n)
            self.left[w] = n
            self._block(w)
        else:
            self.computing[w] = True
            self._compute(cpu, self._made, w)

    def _block(self, w: int) -> None:
        _, blocked, serial = self.piece[w]
        self.computing[w] = False
        if not serial:
            self._at(blocked, self._unblocked, w)
        elif self.s.serial_uses_cpu:
            if self.lock_busy < self.s.serial_channels:
                self.lock_busy += 1
                self._compute(serial, self._unlock, w)
            else:
                self.lock_queue.append(w)
        else:
            free = heappop(self.servers)
            done = self.t + serial if free <= self.t else free + serial + self.hand_over
            heappush(self.servers, done)
            self._at(done - self.t + blocked, self._unblocked, w)

    def _unlock(self, w: int) -> None:
        if self.lock_queue:
            following = self.lock_queue.popleft()
            self._compute(self.piece[following][2] + self.hand_over, self._unlock, following)
        else:
            self.lock_busy -= 1
        blocked = self.piece[w][1]
        if blocked:
            self._at(blocked, self._unblocked, w)
        else:
            self._unblocked(w)

    def _unblocked(self, w: int) -> None:
        self.left[w] -= 1
        self.computing[w] = True
        self._compute(self.piece[w][0], self._block if self.left[w] else self._made, w)

    def _made(self, w: int) -> None:
        task = self.current[w]
        if task >= 0:
            self.finished += 1
            self.most = max(self.most, self.finished)
            if self.log is not None:
                self.log.append(Event(self.t, "made", w, task))
        self.computing[w] = False
        if self.receiving is not None and self.receiving[0] == w:
            # Its threads are done, and let go of the GIL that the hand-over waited for.
            _, handed, end_s = self.receiving
            self.receiving = None
            self._at(min(end_s - self.t, self.s.receive_idle_s), self._rebuild, handed)
        # The queue's own thread sends the batch off while the worker goes on.
        if self.tasks[w] and not self.ended[w]:
            self._begin(w)
        else:
            self.idle[w] = not self.ended[w]
        if not self.s.feed_cpu_s:
            self._arrive(w, task)
        elif self.feeding[w]:
            self.outbox[w].append(task)
        else:
            self.feeding[w] = True
            self._compute(self.s.feed_cpu_s, self._fed, (w, task))

    def _fed(self, what: tuple[int, int]) -> None:
        w, task = what
        if self.outbox[w]:
            self._compute(self.s.feed_cpu_s, self._fed, (w, self.outbox[w].popleft()))
        else:
            self.feeding[w] = False
        self._arrive(w, task)

    def _arrive(self, w: int, task: int) -> None:
        self.results.append((w, task))
        if self.waiting and not (self.wait_full and self.finished < self.sent):
            self.waiting = self.wait_full = False
            self._next(None)

    # -- main process -----------------------------------------------------

    def _epoch_length(self) -> int:
        if self.s.worker_batches is not None:
            return sum(self.s.worker_batches[w % len(self.s.worker_batches)] for w in range(self.s.num_workers))
        return self.s.batches_per_epoch or (1 << 60)

    def _open_epoch(self, spawn: bool) -> None:
        n = self.s.num_workers
        self.epoch_base = len(self.returns)
        self.fresh = [NEW if spawn else AGAIN] * n
        self.sent = self.due = self.cycle = self.taken = 0
        self.count = [0] * n if spawn or self.s.worker_batches is not None else self.count
        self.active = [True] * n
        self.ended = [False] * n
        self.outstanding = [0] * n
        self.tasks = [deque() for _ in range(n)]
        self.owner.clear()
        self.kept.clear()
        self.results.clear()
        if spawn:
            self.started = [False] * n
            self.idle = [False] * n
            self._spawn(0)
        else:
            self.idle = [True] * n
            self._prime(None)

    def _spawn(self, w: int) -> None:
        if w:
            self._at(self.s.init_s, self._ready, w - 1)
        if w < self.s.num_workers:
            self._burst(self.s.start_s, self._spawn, w + 1)
        else:
            self._prime(None)

    def _prime(self, _: None) -> None:
        for _i in range(self.s.num_workers * self.s.prefetch_factor):
            self._send()
        self._next(None)

    def _send(self) -> None:
        """Give out one task, as ``_try_put_index`` does."""
        s, n = self.s, self.s.num_workers
        if s.worker_batches is None and self.sent >= self.total:
            return
        for _ in range(n):
            w = self.cycle % n
            self.cycle += 1
            if self.active[w] and (s.in_order or self.outstanding[w] < s.prefetch_factor):
                break
        else:
            return
        task = self.sent
        self.sent += 1
        self.owner[task] = w
        self.outstanding[w] += 1
        if self.log is not None:
            self.log.append(Event(self.t, "send", w, task))
        self.tasks[w].append(task)
        if self.idle[w]:
            self._begin(w)

    def _next(self, _: None) -> None:
        if self.s.in_order:
            # Tasks of workers that ran out of data are skipped, unless their batch has come.
            while self.s.worker_batches is not None and self.due < self.sent and self.due not in self.kept:
                if self.active[self.owner[self.due]]:
                    break
                self.due += 1
            if self.due in self.kept:
                self.kept.discard(self.due)
                self._burst(self.s.dispatch_cpu_s, self._deliver, self.due)
                return
        if self.results and not self.wait_full:
            w, task = self.results.popleft()
            s = self.s
            # The worker's side of the hand-over needs its GIL and a core, and is woken while the main process
            # still holds its own: with all others taken it stands in line.
            if self.computing[w]:
                blocked = s.receive_busy_s
            else:
                blocked = s.receive_crowded_s if self.load + 1 >= s.cores else s.receive_idle_s
            if s.share_cpu_s and task >= 0:
                self.shares[w] += 1
                if self.shares[w] == 1:
                    self._compute(s.share_cpu_s, self._shared, w)
            if task < 0:
                if task == -1 - self.epoch:
                    self._exhausted(w)
                else:
                    self._next(None)  # of the epoch before
            elif blocked >= CONVOY_S and self.computing[w]:
                self.receiving = (w, task, self.t + blocked)
                self._at(blocked, self._received, self.receiving)
            elif blocked:
                self._at(blocked, self._rebuild, task)
            else:
                self._rebuild(task)
        else:
            self.waiting = True

    def _received(self, what: tuple[int, int, float]) -> None:
        if self.receiving is what:
            self.receiving = None
            self._rebuild(what[1])

    def _shared(self, w: int) -> None:
        """A worker's end of a hand-over is done, by a thread of its own; the main process goes by its own clock."""
        self.shares[w] -= 1
        if self.shares[w]:
            self._compute(self.s.share_cpu_s, self._shared, w)

    def _rebuild(self, task: int) -> None:
        if task == self.due or not self.s.in_order:
            self._burst(self.s.receive_cpu_s + self.s.dispatch_cpu_s, self._deliver, task)
        else:
            self._burst(self.s.receive_cpu_s, self._keep, task)

    def _keep(self, task: int) -> None:
        self.kept.add(task)
        self._next(None)

    def _exhausted(self, w: int) -> None:
        self.active[w] = False
        self.tasks[w].clear()
        if any(self.active):
            self._send()
        self._next(None)

    def _deliver(self, task: int) -> None:
        self.due += 1
        self.taken += 1
        self.finished -= 1
        self.outstanding[self.owner.pop(task)] -= 1
        self._send()
        if self.log is not None:
            self.log.append(Event(self.t, "deliver", -1, task))
        self.returns.append(self.t)
        self.indices.append(task)
        self.epochs.append(self.epoch)
        if len(self.returns) >= self.batches:
            self.stop = True
            return
        steps = self.s.step_s
        step = steps[(len(self.returns) - 1) % len(steps)]
        share = self.s.step_cpu_share
        if step <= 0:
            self._stepped(None)
        elif share <= 0:
            self._at(step, self._stepped, None)
        else:
            width = max(1, round(share))
            demand = step * share / width
            if demand < step:
                self._at(step - demand, self._step_cpu, (demand, width))
            else:
                self._step_cpu((demand, width))

    def _step_cpu(self, what: tuple[float, int]) -> None:
        self._compute(what[0], self._stepped, None, what[1])

    def _stepped(self, _: None) -> None:
        self._burst(self.s.release_s, self._released, None)

    def _released(self, _: None) -> None:
        self.ends.append(self.t)
        self.calls.append(self.t)
        if self.taken >= self.total:
            self.epoch += 1
            self._at(self.s.edge_s, self._reopen, None)
        else:
            self._next(None)

    def _reopen(self, _: None) -> None:
        self._open_epoch(not self.s.persistent_workers)
