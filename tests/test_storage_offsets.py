"""Which blocks of a file are read, and in which order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ioprobe.probe.engines.offsets import Pass


@given(
    blocks=st.integers(1, 3000),
    streams=st.integers(1, 5),
    random=st.booleans(),
    contiguous=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_streams_together_visit_each_block_exactly_once(
    blocks: int, streams: int, random: bool, contiguous: bool, seed: int
) -> None:
    seen: list[int] = []
    for stream in range(streams):
        own = Pass(
            blocks, 512, random=random, seed=seed, stream=stream, streams=streams, once=True, contiguous=contiguous
        )
        while (some := own.take(97)).size:
            seen += (some // 512).tolist()
    assert sorted(seen) == list(range(blocks))


def test_another_seed_reads_in_another_order() -> None:
    one, two = (Pass(10_000, 1, random=True, seed=s).take(100).tolist() for s in (1, 2))
    assert one != two


def test_a_pass_over_few_blocks_repeats_without_end_and_without_delay() -> None:
    own = Pass(3, 4096, random=True, seed=1)
    assert set(own.take(100_000).tolist()) == {0, 4096, 8192}


@pytest.mark.parametrize("blocks", [2, 100, 4096])
def test_passes_follow_each_other_without_end(blocks: int) -> None:
    own = Pass(blocks, 1, random=True, seed=1, stream=1, streams=2)
    assert all(own.take(blocks // 2).size >= blocks // 2 for _ in range(20))


def test_a_stream_without_a_block_of_its_own_ends() -> None:
    assert Pass(1, 1, random=False, seed=1, stream=1, streams=2).take(10).size == 0


def test_sequential_blocks_follow_each_other() -> None:
    own = Pass(100, 10, random=False, seed=7, contiguous=True)
    steps = np.diff(own.take(80)) % 1000
    assert set(steps.tolist()) == {10}
