"""What ``ioprobe analyze`` does without a target: a small dataset and an emulated accelerator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ioprobe.analysis import Request
    from ioprobe_cli.target_options import LoaderOptions

_IMAGES = 1024
_STEP_S = 0.020
_BATCH = 16


def demo_request(request: Request, folder: Path, loader: LoaderOptions, *, quiet: bool) -> Request:
    """Return the request for the embedded default; the dataset is kept beside the runs and used again.

    One worker is what many scripts start with; the emulated step is an accelerator that takes some 800 images/s.
    """
    from ioprobe.data.spec import Spec
    from ioprobe.data.synth import synthesize
    from ioprobe_cli.progress import progress

    place = folder.parent / ".demo-data"
    spec = Spec(format="webdataset", kind="image", samples=_IMAGES, shard_samples=128, seed=0)
    with progress(quiet=quiet) as show:
        show("writing a small dataset of JPEG images to measure with", 0.0, 0.0)
        written = synthesize(spec, str(place))
    options: dict[str, Any] = {
        "num_workers": 1 if loader.num_workers is None else loader.num_workers,
        "batch_size": loader.batch_size or _BATCH,
        "persistent_workers": True,
        "shuffle": True,
        "repeat": True,
    }
    if not options["num_workers"]:
        del options["persistent_workers"]
    elif loader.prefetch_factor:
        options["prefetch_factor"] = loader.prefetch_factor
    fields: dict[str, Any] = {"target": written.url, "loader_options": options}
    if not request.has_step:
        fields |= {"step_s": _STEP_S, "step_source": f"emulated accelerator, {1e3 * _STEP_S:g} ms a step"}
    return replace(request, **fields)
