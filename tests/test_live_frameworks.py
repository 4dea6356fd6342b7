"""Loops that are not the user's own, unchanged under ``ioprobe run``, and the callbacks in them."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from ioprobe.live.launch import Launch, launch
from ioprobe.run import LoaderRun

DATA = """
import json, sys, time, warnings
warnings.filterwarnings("ignore")
import torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
class Data(Dataset):
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i):
        time.sleep(0.001)
        return {"x": torch.ones(8), "labels": torch.tensor(i % 3)}
"""

STATEFUL = """
import sys
if sys.argv[1] == "torch first":
    import torch
    from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
import torch
weight = torch.zeros(1, requires_grad=True)
train_loader = StatefulDataLoader(list(range(64)), batch_size=4, num_workers=int(sys.argv[2]))
for epoch in range(2):
    for batch in train_loader:
        (weight * batch.float().mean()).sum().backward()
"""

LIGHTNING = """
import logging
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
import lightning
from ioprobe.integrations.lightning import StallCallback
logged = []
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 3)
    def training_step(self, batch, k): return torch.nn.functional.cross_entropy(self.net(batch["x"]), batch["labels"])
    def validation_step(self, batch, k): self.net(batch["x"])
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.1)
    def log_dict(self, values):
        super().log_dict(values)
        logged.append(values)
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, callbacks=[StallCallback(every=8, threshold=1.0)] if sys.argv[1:] else [],
)
loaders = [DataLoader(Data(n), batch_size=4, num_workers=1) for n in (96, 48)]
trainer.fit(Model(), *loaders)
print(json.dumps(logged))
"""

TRAINER = """
from transformers import Trainer, TrainingArguments
from ioprobe.integrations.transformers import StallCallback
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 3)
    def forward(self, x, labels=None):
        logits = self.net(x)
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}
arguments = TrainingArguments(
    output_dir=sys.argv[1], per_device_train_batch_size=4, per_device_eval_batch_size=4, num_train_epochs=2,
    dataloader_num_workers=1, use_cpu=True, report_to=[], disable_tqdm=True, logging_steps=4, save_strategy="no",
    eval_strategy="epoch", gradient_accumulation_steps=2,
)
callbacks = [StallCallback(every=4, threshold=1.0)] if sys.argv[2:] else []
trainer = Trainer(Model(), arguments, train_dataset=Data(96), eval_dataset=Data(48), callbacks=callbacks)
trainer.train()
print(json.dumps([entry for entry in trainer.state.log_history if "loss" in entry]))
"""

ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train_loader = DataLoader(Data(96), batch_size=4, num_workers=1)
model, optimizer, train_loader = accelerator.prepare(model, optimizer, train_loader)
for epoch in range(2):
    for batch in train_loader:
        accelerator.backward(torch.nn.functional.cross_entropy(model(batch["x"]), batch["labels"]))
        optimizer.step()
        optimizer.zero_grad()
if accelerator.num_processes > 1:
    torch.distributed.destroy_process_group()
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "train.py"
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write


def loaders(*command: str) -> dict[str, LoaderRun]:
    """Return the loaders of a job of one process that ends well, by name."""
    ended = launch(Launch((sys.executable, *command)))
    assert ended.exit_code == 0
    assert ended.run.caveats == []
    return {loader.name: loader for loader in ended.run.loaders}


def printed(*command: str) -> list[dict[str, float]]:
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    found: list[dict[str, float]] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(("order", "workers"), [("torch first", "1"), ("torchdata first", "0")])
def test_a_stateful_dataloader_is_seen_whichever_package_is_imported_first(
    script: Callable[[str], str], order: str, workers: str
) -> None:
    pytest.importorskip("torchdata.stateful_dataloader")
    found = loaders("-W", "ignore", script(STATEFUL), order, workers)
    assert list(found) == ["train"]
    train = found["train"]
    assert train.variable == "train_loader"
    assert train.main.epoch == [0] * 16 + [1] * 16
    assert train.workers is not None
    assert len(train.workers.worker) == 32


def test_a_lightning_trainer_is_seen_with_validation_apart(script: Callable[[str], str]) -> None:
    pytest.importorskip("lightning")
    found = loaders(script(DATA + LIGHTNING))
    # Lightning knows the length and asks for no batch after the last: that step's end is not known.
    assert found["train"].main.epoch == [0] * 23 + [1] * 23
    assert len(found["validation"].main.epoch) >= 22


def test_the_lightning_callback_logs_stall_and_stages(script: Callable[[str], str]) -> None:
    pytest.importorskip("lightning")
    windows = printed(script(DATA + LIGHTNING), "with callback")
    assert len(windows) >= 4
    for window in windows:
        assert 0 < window["ioprobe/stall_share"] < 1
        assert sum(v for k, v in window.items() if k.startswith("ioprobe/workers/")) == pytest.approx(1.0)


def test_a_transformers_trainer_is_seen_with_evaluation_apart(script: Callable[[str], str], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    found = loaders(script(DATA + TRAINER), str(tmp_path / "out"))
    assert len(found["train"].main.epoch) == 48
    assert all(name.startswith("validation") for name in found if name != "train")


def test_the_trainer_callback_logs_stall_and_stages(script: Callable[[str], str], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    windows = [w for w in printed(script(DATA + TRAINER), str(tmp_path / "out"), "with callback") if "stall_share" in w]
    assert len(windows) >= 3
    for window in windows:
        assert 0 < window["stall_share"] < 1
        assert sum(v for k, v in window.items() if k.startswith("workers_")) == pytest.approx(1.0)


def test_the_ranks_of_accelerate_launch_are_seen(script: Callable[[str], str]) -> None:
    pytest.importorskip("accelerate")
    options = ["--multi_gpu", "--num_processes", "2", "--num_machines", "1"]
    options += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    command = (sys.executable, "-m", "accelerate.commands.launch", *options, script(DATA + ACCELERATE))
    ended = launch(Launch(command))
    assert ended.exit_code == 0
    ranks = [ended.run, *ended.run.ranks]
    assert [(run.rank, run.world_size) for run in ranks] == [(0, 2), (1, 2)]
    assert [run.loaders[-1].variable for run in ranks] == ["train_loader"] * 2
    assert [run.loaders[-1].main.epoch for run in ranks] == [[0] * 12 + [1] * 12] * 2
