"""An import takes up to 0.2 s: in the middle of a measured loop it would be told as if the training did it."""

import subprocess
import sys

import pytest

LOOP = """
import sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader
from ioprobe.instrument.facts import settings_of
from ioprobe.probe.loop import LoopMeter
from ioprobe.probe.step import EmulatedStep

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        return i

seen = []

def step(batch):
    seen.append(set(sys.modules))
    time.sleep(0.001)

loader = DataLoader(Rows(), batch_size=4, num_workers=WORKERS)
meter = LoopMeter(loader, step, settings=settings_of(loader), seconds=1.6, least_s=0.4, precision=0.0)
run = meter.run()
assert run.failure is None, run.failure
assert len(seen) > 100
print(sorted(seen[-1] - seen[2]))
"""
STEP = """
import sys, time
import torch
from ioprobe.probe.step import measure_step

seen = []

def step(batch):
    seen.append(set(sys.modules))
    time.sleep(0.001)

run = measure_step(step, torch.zeros(4), seconds=0.5, samples=4, trace=False)
assert run.failure is None, run.failure
assert len(seen) > 100
print(sorted(seen[-1] - seen[2]))
"""


@pytest.mark.parametrize(
    "script", [LOOP.replace("WORKERS", "0"), LOOP.replace("WORKERS", "2"), STEP], ids=["loop", "workers", "step"]
)
def test_no_module_is_imported_while_batches_or_steps_are_timed(script):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
