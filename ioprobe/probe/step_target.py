"""From what the user's factory returns to a step: a callable taken as it is, or a module that gets trained."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

from ioprobe.errors import TargetError
from ioprobe.probe.step_sync import find_switch
from ioprobe.probe.step_vary import Variation
from ioprobe.probe.target import as_target_error, load_function

LEARNING_RATE = 1e-6
"""Small, so that thousands of steps on one batch do not drive the weights to infinity."""


class ModuleStep:
    """Trains an ``nn.Module`` one step: forward, a scalar made of its output, backward, plain SGD.

    The loss is the output's ``loss`` where it has one, else the mean of its
    first floating-point tensor: the arithmetic of training without knowing the
    task. The batch is moved to the device once and stays there.

    Args:
        module: Trained in place.
        device: Where module and batch live.
        dtype: Compute type under autocast (``torch.bfloat16``, ``torch.float16``); None for the module's own.
        accumulate: Micro-steps between two optimizer steps; only the last of them synchronises gradients, where the
            module allows that.
        compiled: Run the module through ``torch.compile``.
    """

    def __init__(
        self, module: Any, device: Any = None, *, dtype: Any = None, accumulate: int = 1, compiled: bool = False
    ) -> None:
        import torch

        from ioprobe.probe.device import current_device

        self.device = current_device() if device is None else device
        self.module = module.to(self.device).train()
        self.dtype, self.accumulate = dtype, accumulate
        self.forward: Callable[..., Any] = torch.compile(self.module) if compiled else self.module
        self.uncompiled: Callable[[Any], None] = self._written if compiled else self
        trained = [p for p in self.module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.SGD(trained, lr=LEARNING_RATE) if trained else None
        self._switch = find_switch(self.module) if accumulate > 1 else None
        self._resident: tuple[Any, tuple[Any, ...], dict[str, Any]] | None = None
        self._count = 0

    def __call__(self, batch: Any) -> None:
        self._train(self.forward, batch)

    def _written(self, batch: Any) -> None:
        """The step without compilation, as counters of operators see it."""
        self._train(self.module, batch)

    def _train(self, forward: Callable[..., Any], batch: Any) -> None:
        import torch

        args, kwargs = self.arguments(batch)
        self._count += 1
        is_last = self._count % self.accumulate == 0
        with nullcontext() if is_last or self._switch is None else self._switch.off():
            with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.dtype is not None):
                loss = scalar(forward(*args, **kwargs))
            if self.optimizer is None or not loss.requires_grad:
                return
            (loss / self.accumulate).backward()
        if is_last:
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def arguments(self, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what the module is called with: a tensor as it is, a mapping by name, a sequence's first entry."""
        if self._resident is None or self._resident[0] is not batch:
            args, kwargs = self._arguments(batch)
            # The batch itself is kept beside its copy: an id may be used again, an object in hand may not.
            self._resident = (batch, tuple(map(self._place, args)), {k: self._place(v) for k, v in kwargs.items()})
        return self._resident[1], self._resident[2]

    def _arguments(self, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if isinstance(batch, Mapping):
            names = _keywords(self.module.forward)
            chosen = {k: v for k, v in batch.items() if names is None or k in names}
            return ((), chosen) if chosen else ((next(iter(batch.values())),), {})
        if isinstance(batch, (list, tuple)):
            return (batch[0],), {}
        return (batch,), {}

    def _place(self, value: Any) -> Any:
        import torch

        if not isinstance(value, torch.Tensor):
            return value
        value = value.to(self.device)
        if value.dtype == torch.uint8 and (own := self.parameter_dtype) is not None:
            return value.to(own)  # images as they come from a decoder
        return value

    @property
    def parameter_dtype(self) -> Any:
        """The module's first floating-point parameter's type, None where it has none."""
        return next((p.dtype for p in self.module.parameters() if p.is_floating_point()), None)


def scalar(output: Any) -> Any:
    """Return a scalar to differentiate: the output's loss, or the mean of its first floating-point tensor.

    Raises:
        TargetError: the output holds neither.
    """
    import torch

    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor):
        return loss.mean()
    queue = [output]
    while queue:
        value = queue.pop(0)
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value.float().mean()
        if isinstance(value, Mapping):
            queue += value.values()
        elif isinstance(value, (list, tuple)):
            queue += value
    raise TargetError(
        f"the module returned {type(output).__name__}, which holds no floating-point tensor to train on",
        hint="let the step be a function that takes a batch and does forward, backward and optimizer itself",
    )


def load_step(target: str, device: Any = None) -> Callable[[Any], Any]:
    """Return the step that ``file.py:name`` or ``module:name`` stands for.

    A class or a function without required parameters is a factory and is
    called; a function with a required parameter is the step itself. A factory
    may return a callable that takes a batch, or an ``nn.Module``. With several
    ranks the step is also timed without gradient synchronisation, where it holds
    a module that allows this: see :mod:`ioprobe.probe.step_sync`.

    Behind a question mark may stand how it is to run, as in
    ``train.py:make_step?precision=bf16&accum=4&compile=on``: see
    :class:`ioprobe.probe.step_vary.Variation`.

    Raises:
        TargetError: it cannot be imported, raised, or gives nothing that takes a batch.
        UsageError: the step cannot be varied like that.
    """
    place, _, query = target.partition("?")
    variation = Variation.parse(query)
    found = load_function(place)
    if _is_module(found) or not _is_factory(found):
        return as_step(found, place, device, variation)
    keywords = variation.keywords(found)
    try:
        made = found(**keywords)
    except BaseException as error:
        raise as_target_error(error, f"the step's factory '{place}' raised") from None
    return as_step(made, place, device, variation.without(keywords))


def as_step(made: Any, name: str, device: Any = None, variation: Variation | None = None) -> Callable[[Any], Any]:
    """Return a callable that takes a batch; a module gets an optimizer around it.

    Raises:
        TargetError: it is neither.
        UsageError: it cannot be varied like that.
    """
    variation = variation or Variation()
    if _is_module(made):
        dtype, accumulate = variation.autocast_dtype(), variation.accum or 1
        return ModuleStep(made, device, dtype=dtype, accumulate=accumulate, compiled=bool(variation.compile))
    if callable(made):
        return variation.wrap(made, name, device)
    what = "nothing" if made is None else f"an object of type {type(made).__name__}"
    raise TargetError(
        f"the step's factory '{name}' returned {what}; expected a callable that takes a batch, or an nn.Module",
        hint="return the function that does forward, backward and optimizer.step()",
    )


def _is_module(value: Any) -> bool:
    import torch

    return isinstance(value, torch.nn.Module)


def _is_factory(function: Callable[..., Any]) -> bool:
    if inspect.isclass(function):
        return True
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    required = [
        p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    return not required and not any(p.kind is p.VAR_POSITIONAL for p in parameters)


def _keywords(function: Callable[..., Any]) -> set[str] | None:
    """Names a function takes; None where it takes any."""
    parameters = inspect.signature(function).parameters.values()
    return None if any(p.kind is p.VAR_KEYWORD for p in parameters) else {p.name for p in parameters}
