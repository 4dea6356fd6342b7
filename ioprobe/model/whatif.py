"""``KEY=VALUE`` to settings: what may be asked of a saved run, nothing executed."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from ioprobe.errors import UsageError
from ioprobe.model.profile import Profile, Setting

MOST_POINTS = 200


@dataclass(frozen=True)
class Key:
    """One knob of ``ioprobe predict --set``."""

    name: str
    text: str
    """What it means, for the help."""
    read: Callable[[str], float]
    apply: Callable[[Setting, float, Profile], Setting]


def _count(least: int, most: int = 4096) -> Callable[[str], float]:
    def read(text: str) -> float:
        number = int(text)
        if not least <= number <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return float(number)

    return read


def _positive(text: str) -> float:
    number = float(text)
    if not (0 < number < math.inf):
        raise ValueError("a positive number")
    return number


def _not_negative(text: str) -> float:
    number = float(text)
    if not (0 <= number < math.inf):
        raise ValueError("a number of at least 0")
    return number


def _switch(text: str) -> float:
    words = {"true": 1.0, "yes": 1.0, "on": 1.0, "1": 1.0, "false": 0.0, "no": 0.0, "off": 0.0, "0": 0.0}
    if text.lower() not in words:
        raise ValueError("true or false")
    return words[text.lower()]


KEYS = {
    key.name: key
    for key in (
        Key("num_workers", "worker processes", _count(0), lambda s, v, _: s.at(num_workers=int(v))),
        Key("prefetch_factor", "batches ahead per worker", _count(1), lambda s, v, _: s.at(prefetch_factor=int(v))),
        Key(
            "batch_size",
            "samples in a batch; the step's time grows with it",
            _count(1, 10_000_000),
            lambda s, v, p: s.at(batch_size_factor=v / p.samples_per_batch),
        ),
        Key("step_ms", "time of the step, 0 drains the loader", _not_negative, lambda s, v, _: s.at(step_s=v / 1e3)),
        Key("cores", "cores for main process, workers and step", _positive, lambda s, v, _: s.at(cores=v)),
        Key(
            "storage_mb_s",
            "bandwidth of the storage that all workers share",
            _positive,
            lambda s, v, _: s.at(storage_bytes_per_s=v * 1e6),
        ),
        Key("storage_x", "speed of the storage, 2 is twice as fast", _positive, lambda s, v, _: s.at(storage_x=v)),
        Key(
            "decode_x", "CPU time of read, decode, transform, 0.5 is half", _positive, lambda s, v, _: s.at(decode_x=v)
        ),
        Key("collate_x", "CPU time of collate, 0.5 is half", _positive, lambda s, v, _: s.at(collate_x=v)),
        Key("transport_x", "cost of moving a batch, 0.5 is half", _positive, lambda s, v, _: s.at(transport_x=v)),
        Key(
            "persistent_workers",
            "workers stay between epochs",
            _switch,
            lambda s, v, _: s.at(persistent_workers=bool(v)),
        ),
        Key("in_order", "batches come in the sampler's order", _switch, lambda s, v, _: s.at(in_order=bool(v))),
    )
}


def parse_changes(pairs: Iterable[str]) -> dict[str, tuple[float, ...]]:
    """Return what was asked, by key; several values after a comma make several points.

    Args:
        pairs: ``KEY=VALUE`` or ``KEY=V1,V2,...``, several to a string where blanks part them.

    Raises:
        UsageError: an unknown key, a key given twice, or a value that cannot be meant.

    >>> parse_changes(["num_workers=4,8 step_ms=90"])
    {'num_workers': (4.0, 8.0), 'step_ms': (90.0,)}
    """
    found: dict[str, tuple[float, ...]] = {}
    for pair in " ".join(pairs).split():
        name, sign, text = pair.partition("=")
        if not sign or not text:
            raise UsageError(f"cannot read '{pair}'; expected KEY=VALUE", hint=f"keys are {', '.join(KEYS)}")
        key = KEYS.get(name)
        if key is None:
            near = difflib.get_close_matches(name, KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"keys are {', '.join(KEYS)}"
            raise UsageError(f"cannot predict '{name}': no such key", hint=hint)
        if name in found:
            raise UsageError(f"'{name}' is given twice", hint=f"write several values as {name}=1,2,4")
        found[name] = tuple(_value(key, value) for value in text.split(","))
    if math.prod(len(values) for values in found.values()) > MOST_POINTS:
        raise UsageError(f"more than {MOST_POINTS} combinations are asked for", hint="give fewer values")
    if "storage_mb_s" in found and "storage_x" in found:
        raise UsageError("storage_mb_s and storage_x exclude each other", hint="give one of them")
    return found


def _value(key: Key, text: str) -> float:
    try:
        return key.read(text)
    except ValueError as error:
        expected = str(error) if "could not" not in str(error) and "invalid" not in str(error) else "a number"
        raise UsageError(
            f"{key.name} is '{text}'; expected {expected}", hint=f"write it like {key.name}=8: {key.text}"
        ) from None


def settings_for(profile: Profile, asked: dict[str, Sequence[float]] | dict[str, tuple[float, ...]]) -> list[Setting]:
    """Return one setting per combination of the asked values, on top of the measured one.

    Raises:
        UsageError: the loader is opaque and something other than the step or the cores is asked, or
            bandwidth is asked and the bytes of a batch are not known.
    """
    if not profile.adaptable and set(asked) - {"step_ms"}:
        raise UsageError(
            "cannot predict other settings: the loader is no DataLoader whose settings can be varied",
            hint="only step_ms can be asked of this run",
        )
    if "storage_mb_s" in asked and not profile.memory.batch_bytes:
        raise UsageError("cannot predict storage_mb_s: the bytes of a batch were not measured", hint="use storage_x")
    found = []
    for values in product(*asked.values()):
        setting = profile.current
        for name, value in zip(asked, values, strict=True):
            setting = KEYS[name].apply(setting, value, profile)
        if setting.num_workers == 0:
            setting = setting.at(persistent_workers=False)
        found.append(setting)
    return found


def as_settings(setting: Setting, profile: Profile, asked: Iterable[str] = ()) -> dict[str, float | int | bool]:
    """Return a setting in the words of ``--set``: the loader's knobs, and what else was asked."""
    step_s = profile.step.mean_s * setting.batch_size_factor if setting.step_s is None else setting.step_s
    every: dict[str, float | int | bool] = {
        "num_workers": setting.num_workers,
        "prefetch_factor": setting.prefetch_factor,
        "batch_size": round(profile.samples_per_batch * setting.batch_size_factor),
        "persistent_workers": setting.persistent_workers,
        "in_order": setting.in_order,
        "step_ms": round(1e3 * step_s, 4),
        "cores": setting.cores or profile.cores,
        "storage_mb_s": (setting.storage_bytes_per_s or 0.0) / 1e6,
        "storage_x": setting.storage_x,
        "decode_x": setting.decode_x,
        "collate_x": setting.collate_x,
        "transport_x": setting.transport_x,
    }
    always = ("num_workers", "prefetch_factor", "step_ms")
    return {name: value for name, value in every.items() if name in always or name in set(asked)}
