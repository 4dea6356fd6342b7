"""Comparison of runs: significance and size, pairing, refusal, and the rate of false alarms."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from run_makers import loader_run, run_of, worker_rows

from ioprobe.diagnosis.compare import Comparison, compare
from ioprobe.errors import UsageError
from ioprobe.report.compare import render_json, render_markdown, render_text
from ioprobe.run import Run, dumps, loads


def rounds(rng: np.random.Generator, factor: float, drift: np.ndarray, late_s: float = 0.0, noise: float = 0.05) -> Run:
    """Alternating rounds: a drift that both runs share, noise of their own, and a factor on all times."""
    loaders = []
    for k, shared in enumerate(drift):
        batch_s = 0.02 * factor * shared * rng.lognormal(0, noise)
        fetch = worker_rows([2 * batch_s] * 12)
        loaders.append(loader_run([batch_s] * 12, workers=fetch, begun_s=2.0 * k + late_s))
    return run_of(*loaders)


def single(batch_s: np.ndarray, cores: float = 8.0, cpu_model: str = "cpu") -> Run:
    return run_of(loader_run(batch_s.tolist()), cores=cores, cpu_model=cpu_model)


def verdict_of(result: Comparison, name: str) -> str:
    return next(change.verdict for change in result.metrics if change.name == name)


@pytest.mark.parametrize("batches", [3, 64])
def test_a_run_and_itself_read_twice_are_no_change_however_short_and_noisy(batches: int) -> None:
    waits = np.random.default_rng(0).lognormal(-4, 1, batches)
    result = compare(single(waits), loads(dumps(single(waits))))
    assert (result.verdict, result.exit_code(), result.headline) == ("same", 0, "loader_samples_per_s")
    assert [(c.verdict, c.change.value, c.change.low, c.change.high) for c in result.metrics] == [("same", 0, 0, 0)]
    assert [c.code for c in result.caveats] == ["same-run"]
    assert render_text(result).splitlines()[-1] == "no change: both are the same run"


def test_two_runs_alike_to_the_last_digit_but_of_different_times_are_two_runs() -> None:
    run = single(np.full(64, 0.01))
    result = compare(run, msgspec.structs.replace(run, created_at="2026-01-02T00:00:00Z"))
    assert (result.same_run, result.verdict) == (False, "same")
    (change,) = result.metrics
    # No spread at all within the runs; between them there is the noise band's.
    assert -0.08 < change.change.low < -0.04 < 0.04 < change.change.high < 0.08


@pytest.mark.parametrize(("factor", "verdict"), [(1.08, "undecided"), (1 / 1.08, "faster"), (0.5, "faster")])
def test_a_process_keeps_its_luck_for_life_so_one_steady_run_each_shows_only_changes_beyond_that(
    factor: float, verdict: str
) -> None:
    rng = np.random.default_rng(2)
    base, new = (single(0.01 * f * rng.lognormal(0, 0.0005, 256)) for f in (1.0, factor))
    assert compare(base, new).verdict == verdict


@pytest.mark.parametrize(("noise", "factor"), [(0.02, 0.9), (0.1, 0.6), (0.3, 0.2)])
def test_a_large_improvement_is_faster_even_where_the_host_drifts(noise: float, factor: float) -> None:
    rng = np.random.default_rng(3)
    base, new = (single(0.01 * f * np.repeat(rng.lognormal(0, noise, 8), 16)) for f in (1.0, factor))
    result = compare(base, new)
    assert (result.verdict, result.exit_code()) == ("faster", 0)
    assert result.metrics[0].change.low > 0


def test_hosts_that_drift_over_long_times_as_over_short_ones_raise_no_alarm_in_runs_made_one_after_the_other() -> None:
    rng = np.random.default_rng(6)
    batches, verdicts = 128, []
    for _ in range(150):
        frequency = np.fft.rfftfreq(64 * batches)
        frequency[0] = frequency[1]
        flicker = np.fft.irfft(rng.normal(size=(2, frequency.size)).T.copy().view(complex)[:, 0] / frequency**0.5)
        at = rng.integers(0, flicker.size - 2 * batches)
        both = 0.01 * np.exp(0.1 * flicker[at : at + 2 * batches] / flicker.std())
        verdicts.append(compare(single(both[:batches]), single(both[batches:])).verdict)
    assert verdicts.count("slower") == 0
    assert verdicts.count("faster") <= 0.05 * len(verdicts)


def test_undecided_says_by_how_much_it_may_have_changed() -> None:
    rng = np.random.default_rng(3)
    base, new = (single(0.01 * np.repeat(rng.lognormal(0, 0.15, 8), 16)) for _ in range(2))
    result = compare(base, new)
    assert result.verdict == "undecided"
    assert f"may have changed by {result.metrics[0].interval}; measure more" in render_text(result)


def test_a_figure_within_the_bands_but_for_its_interval_is_undecided_not_same() -> None:
    drift, rng = np.ones(12), np.random.default_rng(5)
    base = rounds(rng, 1.0, drift, noise=0.02)
    wide = rounds(rng, 1.0, drift, late_s=1.0, noise=0.3)
    change = next(c for c in compare(base, wide).metrics if c.name == "fetch_s")
    assert change.paired
    assert change.change.low < -0.08 or change.change.high > 0.08
    assert change.verdict == "undecided"


def test_shares_change_by_points_and_all_else_by_percent() -> None:
    stalled, fed = (run_of(loader_run([w * k for k in (1, 1.01) * 50], [0.03] * 100)) for w in (0.12, 0.003))
    result = compare(stalled, fed)
    stall = next(c for c in result.metrics if c.name == "stall_share")
    assert stall.size == "-70.9 points"
    assert stall.interval.endswith(" points")
    assert stall.interval.count("points") == 1
    assert "%" not in stall.interval
    rate = next(c for c in result.metrics if c.name == "samples_per_s")
    assert rate.size.endswith("%")
    assert "points" not in rate.size
    (row,) = [line for line in render_text(result).splitlines() if line.startswith("stall_share")]
    assert "%" not in row.split("-70.9 points")[1]


def test_a_large_steady_slowdown_is_slower_and_the_reverse_is_faster() -> None:
    rng = np.random.default_rng(1)
    fast, slow = (single(factor * 0.01 * rng.lognormal(0, 0.01, 128)) for factor in (1.0, 1.3))
    result = compare(fast, slow)
    assert (result.verdict, result.exit_code()) == ("slower", 1)
    (change,) = [c for c in result.metrics if c.name == "loader_samples_per_s"]
    assert change.large
    assert change.change.high < -0.18
    assert change.worse_by == pytest.approx(0.3, abs=0.02)
    assert compare(slow, fast).verdict == "faster"
    assert compare(slow, fast).exit_code() == 0


def test_a_significant_change_within_the_noise_band_is_the_same() -> None:
    rng = np.random.default_rng(2)
    drift = np.ones(12)
    result = compare(rounds(rng, 1.0, drift, noise=0.001), rounds(rng, 1.02, drift, late_s=1.0, noise=0.001))
    assert result.metrics[0].p_value is not None
    assert result.metrics[0].p_value < 1e-6
    assert result.metrics[0].change.high < 0
    assert result.verdict == "same"


def test_a_noisy_pair_made_one_after_the_other_is_undecided_not_slower() -> None:
    rng = np.random.default_rng(3)
    drift = np.repeat(rng.lognormal(0, 0.15, 8), 32)
    base, new = single(0.01 * drift), single(0.0115 * drift[::-1])
    result = compare(base, new)
    assert result.verdict == "undecided"
    assert (result.exit_code(), result.exit_code("pass")) == (2, 0)
    assert [c.code for c in result.caveats] == ["not-interleaved"]


def test_alternating_rounds_are_paired_so_that_drift_falls_out() -> None:
    rng = np.random.default_rng(4)
    drift = np.exp(np.cumsum(rng.normal(0, 0.2, 20)))
    base, new = rounds(rng, 1.0, drift, noise=0.02), rounds(rng, 1.1, drift, late_s=1.0, noise=0.02)
    result = compare(base, new)
    assert all(change.paired for change in result.metrics)
    assert verdict_of(result, "fetch_s") == "slower"
    assert not result.caveats


def test_rounds_that_do_not_alternate_are_not_paired() -> None:
    rng = np.random.default_rng(5)
    drift = np.ones(12)
    result = compare(rounds(rng, 1.0, drift), rounds(rng, 1.0, drift, late_s=1000.0))
    assert not any(change.paired for change in result.metrics)


def test_a_broken_round_leaves_the_others_paired() -> None:
    rng = np.random.default_rng(6)
    drift = np.exp(np.cumsum(rng.normal(0, 0.2, 20)))
    base, new = rounds(rng, 1.0, drift, noise=0.02), rounds(rng, 1.1, drift, late_s=1.0, noise=0.02)
    del new.loaders[3]
    change = next(c for c in compare(base, new).metrics if c.name == "fetch_s")
    assert (change.paired, change.values, change.verdict) == (True, 19, "slower")


def test_of_200_equal_pairs_at_most_one_is_called_slower_and_ten_per_cent_is_seen_in_nearly_all() -> None:
    rng = np.random.default_rng(7)
    alarms = caught = 0
    for _ in range(200):
        drift = np.exp(np.cumsum(rng.normal(0, 0.1, 24)))
        alarms += compare(rounds(rng, 1.0, drift), rounds(rng, 1.0, drift, 1.0)).verdict == "slower"
    for _ in range(40):
        drift = np.exp(np.cumsum(rng.normal(0, 0.1, 24)))
        caught += compare(rounds(rng, 1.0, drift), rounds(rng, 1.1, drift, 1.0)).verdict == "slower"
    assert alarms <= 1
    assert caught >= 38


def test_unlike_runs_are_refused_unless_forced() -> None:
    base, new = single(np.full(32, 0.01)), single(np.full(32, 0.01), cores=4.0, cpu_model="other")
    with pytest.raises(UsageError) as caught:
        compare(base, new)
    assert "cpu: cpu -> other" in caught.value.message
    assert "--force" in caught.value.hint
    result = compare(base, new, force=True)
    assert result.unlike == ["cpu: cpu -> other", "usable cores: 8.0 -> 4.0"]


def test_differences_of_settings_are_listed_but_not_refused() -> None:
    base, new = run_of(loader_run([0.01] * 32)), run_of(loader_run([0.01] * 32, num_workers=4))
    result = compare(base, new)
    assert result.differences == ["num_workers: 2 -> 4"]
    assert "num_workers: 2 -> 4" in render_text(result)


def test_runs_without_a_shared_figure_cannot_be_compared() -> None:
    with pytest.raises(UsageError, match="share no figure"):
        compare(run_of(), run_of(loader_run([0.01] * 32)))


def test_an_event_seen_once_is_shown_but_not_judged() -> None:
    base = run_of(loader_run([0.01] * 32, first_batch_s=1.0))
    new = run_of(loader_run([0.01] * 32, first_batch_s=9.0))
    assert verdict_of(compare(base, new), "time_to_first_batch_s") == "not judged"


def test_every_format_says_the_verdict_and_json_has_no_infinity() -> None:
    rng = np.random.default_rng(8)
    drift = np.ones(16)
    result = compare(rounds(rng, 1.0, drift), rounds(rng, 1.3, drift, 1.0))
    text, markdown = render_text(result), render_markdown(result)
    assert text.splitlines()[-1].startswith("slower: loader_samples_per_s, fetch_s, fetch_cpu_s (16 paired rounds")
    assert markdown.startswith("### ioprobe compare: slower\n")
    assert markdown.count("\n| ") == len(result.metrics) + 2
    assert msgspec.json.decode(render_json(result))["verdict"] == "slower"
