"""Frames that name the region of every frame below them, as a table to read; the first match wins."""

from __future__ import annotations

from ioprobe.instrument.stage_rules import Anchor, Region
from ioprobe.run import Stage

_LOADER = "torch.utils.data.dataloader torchdata.stateful_dataloader.stateful_dataloader"


def _in(modules: str, functions: str) -> str:
    return " ".join(f"{m}:{f}" for m in modules.split() for f in functions.split())


ANCHORS: tuple[Anchor, ...] = (
    Anchor(
        "import",
        Region.SETTLED,
        "importlib._bootstrap*:* importlib:import_module zipimport:*",
        settles=Stage.STARTUP,
    ),
    Anchor("collate", Region.COLLATE, "torch.utils.data._utils.collate:* webdataset.filters:*collation*"),
    Anchor("webdataset batching", Region.COLLATE, "webdataset.filters:default_collation_fn"),
    Anchor(
        "pin memory",
        Region.SETTLED,
        "torch.utils.data._utils.pin_memory:pin_memory",
        settles=Stage.TRANSFER,
    ),
    Anchor(
        "sampler",
        Region.SETTLED,
        "torch.utils.data.sampler:* torch.utils.data.distributed:* " + _in(_LOADER, "_next_index"),
        settles=Stage.SAMPLER,
    ),
    Anchor("dataset fetch", Region.FETCH, "torch.utils.data._utils.fetch:fetch"),
    Anchor(
        "worker start",
        Region.SETTLED,
        "torch.utils.data._utils.fetch:__init__ torch.utils.data.dataloader:create_fetcher multiprocessing.spawn:* "
        "multiprocessing.process:start multiprocessing.popen_*:* multiprocessing.forkserver:*",
        settles=Stage.STARTUP,
    ),
    Anchor(
        "worker loop",
        Region.WORKER_LOOP,
        "torch.utils.data._utils.worker:_worker_loop torchdata.stateful_dataloader.worker:_worker_loop",
    ),
    Anchor(
        "pin thread",
        Region.PIN_LOOP,
        "torch.utils.data._utils.pin_memory:_pin_memory_loop torch.utils.data._utils.pin_memory:do_one_step",
        default=Stage.WAIT,
    ),
    Anchor(
        "queue feeder",
        Region.SETTLED,
        "multiprocessing.queues:_feed",
        default=Stage.WAIT,
    ),
    Anchor(
        "resource sharer",
        Region.SETTLED,
        "multiprocessing.resource_sharer:_serve",
        default=Stage.WAIT,
    ),
    Anchor(
        "waits for a batch",
        Region.NEXT,
        _in(_LOADER, "_try_get_data _get_data") + " nvidia.dali.*:__next__ nvidia.dali.*:share_outputs "
        "spdl.*:get_iterator spdl.*:__next__ torchdata.nodes*:next torchdata.nodes*:__next__",
        default=Stage.WAIT,
    ),
    Anchor(
        "hands out tasks",
        Region.NEXT,
        _in(_LOADER, "_try_put_index"),
        default=Stage.TRANSPORT,
    ),
    Anchor(
        "loader start",
        Region.SETTLED,
        _in(_LOADER, "_reset _get_iterator __iter__ __init__ _shutdown_workers _mark_worker_as_unavailable __del__"),
        settles=Stage.STARTUP,
    ),
    Anchor(
        "inside next(loader)",
        Region.NEXT,
        _in(_LOADER, "__next__ _next_data _process_data"),
        default=Stage.WAIT,
    ),
    Anchor(
        "checkpoint",
        Region.SETTLED,
        "torch.serialization:save torch.serialization:_save torch.serialization:_legacy_save safetensors*:save* "
        "torch.distributed.checkpoint*:* orbax.*:* transformers.trainer:_save* "
        "transformers.modeling_utils:save_pretrained  "
        "accelerate.checkpointing:* accelerate.accelerator:save_state deepspeed.runtime.checkpoint*:* "
        "lightning*checkpoint*:* pytorch_lightning*checkpoint*:* *:save_checkpoint "
        "*:_save_checkpoint *:write_checkpoint",
        settles=Stage.CHECKPOINT,
        main_only=True,
    ),
    Anchor(
        "hand-written batch",
        Region.DATASET,
        "*:get_batch *:next_batch *:load_batch *:make_batch *:get_next_batch *:sample_batch "
        "*:fetch_batch *:data_iter *:__next__  "
        "webdataset.pipeline:* webdataset.compat:__iter__ streaming.base.dataset:__iter__ "
        "litdata.streaming.dataset:__next__ datasets.iterable_dataset:__iter__",
        main_only=True,
    ),
    Anchor(
        "batch to device",
        Region.SETTLED,
        "accelerate.utils.operations:send_to_device lightning*:*batch_to_device pytorch_lightning*:*batch_to_device "
        "lightning*:move_data_to_device transformers.trainer:_prepare_input transformers.trainer:_prepare_inputs "
        "*:to_device *:move_to_device",
        settles=Stage.TRANSFER,
        main_only=True,
    ),
    Anchor(
        "launcher",
        Region.SETTLED,
        "torch.distributed.elastic.*:* torch.distributed.run:* torch.distributed.launch*:* accelerate.commands.*:*",
        default=Stage.OTHER,
    ),
    Anchor(
        "logging",
        Region.SETTLED,
        "logging:* logging.*:* wandb*:* mlflow*:* tqdm*:* torch.utils.tensorboard*:* tensorboard*:* tensorboardX*:* "
        "neptune*:* comet_ml*:* rich*:* loguru*:*",
        settles=Stage.OTHER,
        main_only=True,
    ),
    Anchor(
        "training step",
        Region.STEP,
        "torch.nn.modules.module:*call_impl torch.nn.modules.module:__call__ torch.nn.functional:* "
        # Not torch.autograd.profiler: the loader itself marks each batch with it.
        "torch.autograd:* torch.autograd.f*:* torch.autograd.g*:* torch.autograd.variable:* torch._tensor:backward "
        "torch.optim*:* torch._dynamo*:* torch._inductor*:* torch._functorch*:*  "
        "torch.amp*:* torch.cuda.*:* torch.cuda:* torch.accelerator*:* torch.compiler*:* triton*:* deepspeed.*:* "
        "apex.*:* accelerate.accelerator:backward accelerate.optimizer:* transformers.trainer:training_step",
        default=Stage.STEP,
        main_only=True,
    ),
)
