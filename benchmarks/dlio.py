"""dlio-benchmark and ioprobe on the same workload and the same files, in turn: utilisation, throughput, ratio.

    python benchmarks/dlio.py --dlio ENV/bin/dlio_benchmark [--computation-ms 30,15] [--rounds 3] [--folder DIR]

ENV is an environment of its own with dlio-benchmark 2.0.0 (it needs an MPI library; the mpich wheel will do).
Modules that it imports but a PyTorch workload does not use (TensorFlow, DALI, torchvision, torchaudio) are replaced
by empty ones where they are missing. Skips itself, with the reason, where dlio_benchmark does not run.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ioprobe.data.dlio import DlioWorkload, load_workload
from ioprobe.model.au import dlio_metrics
from ioprobe.probe import protocol
from ioprobe.probe.supervise import Supervisor

WORKLOAD = """\
model: small
framework: pytorch
workflow: {{generate_data: False, train: True, checkpoint: False}}
dataset:
  data_folder: data/small
  format: npz
  num_files_train: {files}
  num_samples_per_file: 1
  record_length: {record}
  record_length_resize: 262144
reader: {{data_loader: pytorch, batch_size: 4, read_threads: {threads}, file_shuffle: seed, sample_shuffle: seed}}
train: {{epochs: {epochs}, computation_time: {seconds}}}
metric: {{au: 0.9}}
"""

EMPTY_MODULES = '''\
import importlib.abc, importlib.machinery, importlib.util, sys
from unittest.mock import MagicMock


class Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last in line: takes over only what no other finder has."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"tensorflow", "nvidia", "torchvision", "torchaudio"}:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__ = [], spec
        return module

    def exec_module(self, module):
        pass


sys.meta_path.append(Empty())
'''


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dlio", default="dlio_benchmark", help="the dlio_benchmark script of its environment")
    parser.add_argument("--computation-ms", default="30,15", help="steps to emulate")
    parser.add_argument("--files", type=int, default=240)
    parser.add_argument("--record-bytes", type=int, default=1 << 20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--lock", help="hold this file's lock while measuring")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = arguments.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ioprobe-dlio-")))
        (folder / "shim").mkdir(parents=True, exist_ok=True)
        (folder / "shim" / "sitecustomize.py").write_text(EMPTY_MODULES)
        (folder / "conf" / "workload").mkdir(parents=True, exist_ok=True)
        print(f"{arguments.files} npz files of {arguments.record_bytes} bytes, {arguments.threads} reader(s), batch 4, "
              f"{arguments.epochs} epochs, {arguments.rounds} rounds in turn; median\n")  # fmt: skip
        print("| step | | DLIO | ioprobe | ratio (min-max) |\n| --- | --- | --- | --- | --- |")
        for word in arguments.computation_ms.split(","):
            with locked(arguments.lock):
                reason = compare(arguments, folder, float(word))
            if reason:
                print(f"skipped: {reason}", file=sys.stderr)
                return 0
    return 0


@contextlib.contextmanager
def locked(path: str | None) -> Iterator[None]:
    if path is None:
        yield
        return
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def compare(arguments: argparse.Namespace, folder: Path, step_ms: float) -> str:
    """Measure one step time and print its rows; returns why not, or nothing."""
    place = folder / "conf" / "workload" / "small.yaml"
    place.write_text(
        WORKLOAD.format(
            files=arguments.files,
            record=arguments.record_bytes,
            threads=arguments.threads,
            epochs=arguments.epochs,
            seconds=step_ms / 1000,
        )
    )
    if not (folder / "data").exists() and (reason := generate(arguments, folder)):
        return reason
    theirs, ours = [], []
    for _ in range(arguments.rounds):
        theirs.append(run_dlio(arguments, folder))
        ours.append(run_ioprobe(place, folder))
    for number, name in enumerate(("AU [%]", "samples/s")):
        ratios = sorted(b[number] / a[number] for a, b in zip(theirs, ours, strict=True))
        print(f"| {step_ms:g} ms | {name} | {statistics.median(a[number] for a in theirs):.1f} "
              f"| {statistics.median(b[number] for b in ours):.1f} "
              f"| {statistics.median(ratios):.3f} ({ratios[0]:.3f}-{ratios[-1]:.3f}) |", flush=True)  # fmt: skip
    busy = statistics.median(b[2] for b in ours)
    print(f"| {step_ms:g} ms | busy share, ours [%] | | {busy:.1f} | |", flush=True)
    return ""


def generate(arguments: argparse.Namespace, folder: Path) -> str:
    try:
        done = call_dlio(arguments, folder, "++workload.workflow.generate_data=True", "++workload.workflow.train=False")
    except OSError as error:
        return f"{arguments.dlio}: {error.strerror}"
    return "" if done.returncode == 0 else f"dlio_benchmark ended with {done.returncode}: {done.stderr[-300:]}"


def call_dlio(arguments: argparse.Namespace, folder: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(folder / "shim"), "HYDRA_FULL_ERROR": "1"}
    command = [arguments.dlio, "--config-dir", str(folder / "conf"), "workload=small", "hydra.run.dir=log", *overrides]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def run_dlio(arguments: argparse.Namespace, folder: Path) -> tuple[float, float]:
    """AU [%] and samples/s as DLIO reports them."""
    done = call_dlio(arguments, folder)
    if done.returncode:
        raise SystemExit(f"dlio_benchmark ended with {done.returncode}: {done.stderr[-500:]}")
    metric = json.loads((folder / "log" / "summary.json").read_text())["metric"]
    return metric["train_au_mean_percentage"], metric["train_throughput_mean_samples_per_second"]


def run_ioprobe(place: Path, folder: Path) -> tuple[float, float, float]:
    """The same by DLIO's definitions from ioprobe's loop, and our own busy share [%]."""
    workload = load_workload(place)
    load = protocol.Load(
        target="ioprobe.data.dlio_dataset:make_loader",
        step_s=workload.computation_time_s,
        loader_options={"workload": str(place), "folder": str(folder)},
        stacks_hz=0.0,
    )
    with Supervisor() as supervisor:
        supervisor.load(load)
        seconds = run_seconds(workload)
        measured = supervisor.measure(protocol.Measure(coupled=True, seconds=seconds, least_s=seconds, precision=0.0))
    if measured.failure is not None:
        raise SystemExit(f"ioprobe: {measured.failure.message}")
    found = dlio_metrics(measured.main, workload.batch_size, workload.record_length_bytes, workload.computation_time_s)
    if found is None:
        raise SystemExit("ioprobe: too few steps")
    return 100 * found.au, found.samples_per_s, 100 * found.busy_share


def run_seconds(workload: DlioWorkload) -> float:
    """As long as DLIO's epochs take at least, and a little for what they wait."""
    steps = workload.num_files_train * workload.num_samples_per_file // workload.batch_size * workload.epochs
    return 1.2 * steps * workload.computation_time_s + 1.0


if __name__ == "__main__":
    sys.exit(main())
