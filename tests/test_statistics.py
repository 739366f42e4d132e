"""Statistics against samples whose truth is known: how often intervals hold it, how often verdicts are wrong.

Every rate below is counted over RUNS made-up runs. The limits are the nominal rate and what counting RUNS of them
scatters (a binomial's), so a method that is off by much fails and luck does not.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from moelab import statistics
from moelab.statistics import Ratio, Verdict

RUNS = 120
Noise = Callable[[np.random.Generator, int, int], npt.NDArray[np.float64]]


@pytest.fixture(autouse=True)
def _fewer_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ends of intervals scatter by a few percent of their width more; simulations run four times faster."""
    monkeypatch.setattr(statistics, "RESAMPLES", 1000)


def normal(rng: np.random.Generator, processes: int, rounds: int) -> npt.NDArray[np.float64]:
    return rng.normal(0, 0.01, (processes, rounds))


def outliers(rng: np.random.Generator, processes: int, rounds: int) -> npt.NDArray[np.float64]:
    """One sample in ten is slower, some by a lot: an interrupt, another program."""
    hit = rng.random((processes, rounds)) < 0.1
    return normal(rng, processes, rounds) + hit * rng.exponential(0.5, (processes, rounds))


def bimodal(rng: np.random.Generator, processes: int, rounds: int) -> npt.NDArray[np.float64]:
    """Two speeds, 10 % apart, from sample to sample: memory bandwidth that switches."""
    return normal(rng, processes, rounds) + 0.1 * (rng.random((processes, rounds)) < 0.3)


def by_process(rng: np.random.Generator, processes: int, rounds: int) -> npt.NDArray[np.float64]:
    """Each process as a whole is a little fast or slow: where its memory lies."""
    return normal(rng, processes, rounds) + rng.normal(0, 0.01, (processes, 1))


NOISES: dict[str, Noise] = {"normal": normal, "outliers": outliers, "bimodal": bimodal, "by_process": by_process}


def measure(
    rng: np.random.Generator, noise: Noise, speed: float, *, processes: int = 5, rounds: int = 10, drift: float = 0.0
) -> tuple[Ratio, Ratio]:
    """Ratio of a backend of this true speed to its baseline, and the A/A control, from one made-up run.

    All samples of a round share the machine's drift, as neighbours in time do.
    """
    shared = np.linspace(0, drift, processes * rounds).reshape(processes, rounds)
    process = np.repeat(np.arange(processes), rounds)

    def seconds(true_speed: float) -> npt.NDArray[np.float64]:
        return np.asarray(np.exp(shared + noise(rng, processes, rounds)).ravel() / true_speed)

    baseline, backend, again = seconds(1.0), seconds(speed), seconds(speed)
    return (
        statistics.paired_ratio(list(baseline), list(backend), list(process)),
        statistics.paired_ratio(list(backend), list(again), list(process)),
    )


def verdicts(noise: Noise, speed: float, *, runs: int = RUNS, **shape: float) -> list[Verdict]:
    rng = np.random.default_rng(1)
    return [statistics.judge(*measure(rng, noise, speed, **shape)) for _ in range(runs)]  # type: ignore[arg-type]


def at_most(rate: float) -> int:
    """Counts above this are not chance: one in a thousand at this true rate."""
    return int(stats.binom.isf(1e-3, RUNS, rate))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("processes", "rounds"), [(2, 3), (3, 6), (5, 10)])
def test_intervals_cover_the_true_ratio(noise: str, processes: int, rounds: int) -> None:
    """95 % nominal; 90 % is asked for: two or three processes say little about differences between processes."""
    rng = np.random.default_rng(2)
    missed = 0
    for _ in range(RUNS):
        ratio, _ = measure(rng, NOISES[noise], 1.3, processes=processes, rounds=rounds)
        missed += not ratio.low <= 1.3 <= ratio.high
    assert missed <= at_most(0.10)


@pytest.mark.parametrize("noise", NOISES)
def test_interval_of_a_time_covers_its_median(noise: str) -> None:
    rng = np.random.default_rng(3)
    truth = float(np.exp(np.median(NOISES[noise](rng, 2000, 100))))
    missed = 0
    process = list(np.repeat(np.arange(5), 10))
    for _ in range(RUNS):
        found = statistics.interval(list(np.exp(NOISES[noise](rng, 5, 10)).ravel()), process)
        missed += not found.low <= truth <= found.high
    assert missed <= at_most(0.10)


def test_an_interval_is_not_wide_for_nothing() -> None:
    """An interval that covers everything would pass the tests above."""
    rng = np.random.default_rng(4)
    widths = [np.log(r.high / r.low) for r, _ in (measure(rng, normal, 1.0) for _ in range(50))]
    # The median of 50 differences of two normals of 1 % has a standard error of 0.25 %: an ideal interval is 1 % wide.
    assert np.median(widths) < 0.02


@pytest.mark.parametrize("noise", NOISES)
def test_no_difference_is_never_called_one(noise: str) -> None:
    found = [v.alone for v in verdicts(NOISES[noise], 1.0)]
    assert found.count("faster") + found.count("slower") <= at_most(0.01)


def test_no_difference_is_found_to_be_none_where_noise_allows() -> None:
    found = [v.alone for v in verdicts(normal, 1.0)]
    assert found.count("same") > 0.9 * RUNS


@pytest.mark.parametrize("noise", NOISES)
def test_one_percent_is_never_called_a_difference(noise: str) -> None:
    """It lies inside the margin of 2 %."""
    found = [v.alone for v in verdicts(NOISES[noise], 1.01)]
    assert found.count("faster") + found.count("slower") <= at_most(0.025)


@pytest.mark.parametrize("noise", NOISES)
def test_more_than_the_margin_is_never_called_the_same(noise: str) -> None:
    found = [v.alone for v in verdicts(NOISES[noise], 1.03)]
    assert found.count("same") + found.count("slower") <= at_most(0.025)


def test_at_the_margin_either_claim_is_rare() -> None:
    found = [v.alone for v in verdicts(normal, 1.02)]
    assert found.count("faster") <= at_most(0.05)
    assert found.count("same") <= at_most(0.05)


@pytest.mark.parametrize(("speed", "verdict"), [(1.1, "faster"), (1 / 1.1, "slower")])
def test_ten_percent_is_seen(speed: float, verdict: str) -> None:
    for noise in (normal, outliers, by_process):
        assert [v.alone for v in verdicts(noise, speed, runs=40)].count(verdict) > 36


def test_drift_of_the_machine_does_not_matter() -> None:
    """40 % slower from the first to the last round: far beyond the margin, and shared by all backends of a round."""
    found = [v.alone for v in verdicts(normal, 1.0, drift=0.4)]
    assert found.count("same") > 0.9 * RUNS
    ratio, _ = measure(np.random.default_rng(5), normal, 1.1, drift=0.4)
    assert ratio.low < 1.1 < ratio.high < 1.13


def test_a_whole_table_without_differences_rarely_claims_one() -> None:
    """54 cells each: the chance of any false claim in a table stays below 5 %."""
    rng = np.random.default_rng(6)
    tables = 12
    wrong = 0
    for _ in range(tables):
        cells = [statistics.judge(*measure(rng, by_process, 1.0, processes=3, rounds=4)) for _ in range(54)]
        judged = statistics.judge_table(cells)
        wrong += any(v.table in ("faster", "slower") for v in judged)
    assert wrong <= int(stats.binom.isf(1e-3, tables, 0.05))


def test_the_smallest_difference_that_could_be_seen_is_seen_four_times_in_five() -> None:
    rng = np.random.default_rng(7)
    detectable = float(np.median([measure(rng, normal, 1.0)[0].minimum_detectable for _ in range(40)]))
    seen = 0
    for _ in range(RUNS):
        ratio, _ = measure(rng, normal, 1 + detectable)
        seen += ratio.low > 1
    assert 0.7 * RUNS < seen < 0.97 * RUNS


def ratio_of(low: float, value: float, high: float, processes: int = 5) -> Ratio:
    return Ratio(value, low, high, 0.95, 50, processes, 20.0, 0.01)


QUIET = ratio_of(0.995, 1.0, 1.005)
NOISY = ratio_of(0.95, 1.0, 1.06)


@pytest.mark.parametrize(
    ("ratio", "control", "verdict"),
    [
        (ratio_of(1.03, 1.04, 1.05), QUIET, "faster"),
        (ratio_of(0.95, 0.96, 0.97), QUIET, "slower"),
        (ratio_of(0.99, 1.0, 1.01), QUIET, "same"),
        (ratio_of(0.99, 1.0, 1.01), NOISY, "undecided"),  # the control is not inside the margin
        (ratio_of(1.03, 1.04, 1.05), NOISY, "undecided"),  # a difference that the control shows as well
        (ratio_of(1.2, 1.3, 1.4), NOISY, "faster"),
        (ratio_of(1.005, 1.01, 1.03), QUIET, "undecided"),  # crosses the margin
        (ratio_of(1.2, 1.3, 1.4), None, "undecided"),  # no control, no claim
        (ratio_of(1.2, 1.3, 1.4, processes=1), QUIET, "undecided"),
    ],
)
def test_verdicts(ratio: Ratio, control: Ratio | None, verdict: str) -> None:
    assert statistics.judge(ratio, control).alone == verdict


def test_p_value_and_interval_agree_at_the_edge() -> None:
    edge = ratio_of(1.02, 1.04, 1.06)
    assert statistics._tail(edge, float(np.log(1.02))) == pytest.approx(0.05)


def test_holm_on_a_worked_example() -> None:
    """Holm (1979): p sorted, times the number of hypotheses still open, never decreasing."""
    assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_correction_takes_back_a_weak_claim_among_many() -> None:
    weak = Verdict("faster", "faster", 0.02, 0.02, 0.02, "")
    strong = Verdict("faster", "faster", 1e-6, 1e-6, 0.02, "")
    nothing = Verdict("undecided", "undecided", None, None, 0.02, "")
    judged = statistics.judge_table([weak, strong, *[nothing] * 20])
    assert [v.table for v in judged[:3]] == ["undecided", "faster", "undecided"]
    assert judged[0].alone == "faster"


@pytest.mark.parametrize(
    ("baseline", "backend", "process", "complaint"),
    [
        ([], [], [], "at least one sample"),
        ([1.0], [1.0, 2.0], [0], "paired by round"),
        ([1.0, 0.0], [1.0, 1.0], [0, 0], "positive"),
        ([1.0, float("nan")], [1.0, 1.0], [0, 0], "positive"),
        ([1.0], [1.0], [0, 0], "entries"),
    ],
)
def test_bad_samples_are_refused(
    baseline: list[float], backend: list[float], process: list[int], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        statistics.paired_ratio(baseline, backend, process)


def test_the_same_samples_give_the_same_interval() -> None:
    seconds = list(np.exp(np.random.default_rng(8).normal(0, 0.1, 20)))
    process = [0, 1] * 10
    assert statistics.interval(seconds, process) == statistics.interval(seconds, process)


def test_processes_of_unequal_length_and_a_single_sample_work() -> None:
    found = statistics.interval([1.0, 1.1, 0.9, 1.0, 1.2], [0, 0, 0, 0, 1])
    assert found.low <= found.median <= found.high
    assert statistics.interval([2.0], [0]).median == pytest.approx(2.0)
