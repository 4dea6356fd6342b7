"""ioprobe beside its peers in one run, each peer in an environment of its own; prints Markdown, losses included.

    python benchmarks/peers.py --envs ENVS --state STATE [--only loadtune,traceml,dlio,hta,fio] [--limit 280]

ENVS gets one virtual environment for each peer on first use (1 GB each; torch as constraints.txt has it); fio must be
on PATH. A peer that cannot be installed is skipped, with the reason. Every row is kept in STATE as it is measured:
after --limit seconds nothing new begins, and the same command goes on where it ended. Everything together takes about
three quarters of an hour on two cores, and nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import peers_loadtune
import peers_traceml
from peers_environment import Kept, OutOfTime, Skipped, environment, run

HERE = Path(__file__).parent
DLIO = [
    ["torch", "Pillow", "PyYAML", "h5py", "mpi4py", "mpich", "numpy", "omegaconf", "pandas", "psutil", "hydra-core"],
    ["--no-deps", "pydftracer==1.0.2"],
    ["--no-deps", "dlio-benchmark==2.0.0"],  # without TensorFlow and DALI, which a PyTorch workload does not use
]
HTA = [["HolisticTraceAnalysis==0.5.0"]]
FIO_CELLS = ["--patterns", "random,sequential", "--blocks", "4k,128k", "--depths", "1,16", "--pairs", "3"]
FIO_FILE_BYTES = 1 << 30


def dlio(kept: Kept, options: argparse.Namespace) -> Iterator[str]:
    """Yield dlio.py's table: DLIO's utilization and throughput beside ours."""
    programs = environment(options.envs / "dlio", DLIO)
    command = [sys.executable, HERE / "dlio.py", "--dlio", programs / "dlio_benchmark"]
    yield kept.once("dlio", run, command, options.seconds)[0]


def hta(kept: Kept, options: argparse.Namespace) -> Iterator[str]:
    """Yield trace_speed.py's figures: one Kineto trace divided by both."""
    programs = environment(options.envs / "hta", HTA)
    command = [sys.executable, HERE / "trace_speed.py", "--hta-python", programs / "python"]
    command += ["--megabytes", options.megabytes]
    text = kept.once("hta", run, command, options.seconds)[0]
    yield from (f"* {line}" for line in text.splitlines())


def fio(kept: Kept, options: argparse.Namespace) -> Iterator[str]:
    """Yield storage_vs_fio.py's table for a few cells, on a file of random bytes."""
    if shutil.which("fio") is None:
        raise Skipped("fio is not on PATH")

    def measure() -> str:
        file = kept.folder / "random.bin"
        try:
            with file.open("wb") as out, open("/dev/urandom", "rb") as random:
                for _ in range(FIO_FILE_BYTES >> 20):
                    out.write(random.read(1 << 20))
            return run([sys.executable, HERE / "storage_vs_fio.py", file, *FIO_CELLS], options.seconds)[0]
        finally:
            file.unlink(missing_ok=True)

    yield kept.once("fio", measure)


PEERS: dict[str, tuple[str, Callable[[Kept, argparse.Namespace], Iterator[str]]]] = {
    "loadtune": ("loadtune 0.3.0: the recommended setting", lambda kept, options: peers_loadtune.table(
        kept, options.envs, options.pipelines, options.seconds)),
    "traceml": ("traceml-ai 0.5.0: verdict and overhead on the same script", lambda kept, options: peers_traceml.table(
        kept, options.envs, options.seconds)),
    "dlio": ("dlio-benchmark 2.0.0: utilization and throughput of the same files", dlio),
    "hta": ("HolisticTraceAnalysis 0.5.0: dividing a trace", hta),
    "fio": ("fio: block reads", fio),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--envs", type=Path, required=True, help="folder of the peers' virtual environments")
    parser.add_argument("--state", type=Path, required=True, help="folder that keeps every row measured")
    parser.add_argument("--only", default=",".join(PEERS), help="peers, by comma")
    parser.add_argument("--pipelines", default=",".join(peers_loadtune.PIPELINES), help="for loadtune, by comma")
    parser.add_argument(
        "--megabytes",
        type=int,
        default=200,
        help="size of the trace for HolisticTraceAnalysis, which takes minutes for 1000",
    )
    parser.add_argument("--limit", type=float, default=float("inf"), help="begin nothing after so many seconds")
    parser.add_argument("--seconds", type=float, default=400.0, help="bound of any single command")
    options = parser.parse_args()
    options.envs, options.pipelines = options.envs.resolve(), options.pipelines.split(",")
    chosen = options.only.split(",")
    if unknown := {*chosen} - {*PEERS} | {*options.pipelines} - {*peers_loadtune.PIPELINES}:
        parser.error(f"not known: {', '.join(sorted(unknown))}")
    kept = Kept(options.state.resolve(), options.limit)
    unfinished = []
    for name in chosen:
        title, lines = PEERS[name]
        print(f"\n## {title}\n", flush=True)
        try:
            for line in lines(kept, options):
                print(line, flush=True)
        except Skipped as reason:
            print(f"skipped: {reason}")
        except OutOfTime:
            unfinished.append(name)
            print("(the time is over; the rest is for another call)")
    if unfinished:
        print(f"\nunfinished: {', '.join(unfinished)}; run the same command again", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
