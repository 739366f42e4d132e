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
from moelab.statistics import Pairs, Ratio, Verdict

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


# ---- cells of one run that share what they know of the scatter ------------------------------------------------------

CELLS, TABLES = 18, 15


def table_of(
    rng: np.random.Generator, noise: Noise, speed: float, processes: int, rounds: int
) -> tuple[list[Pairs], npt.NDArray[np.float64]]:
    """The samples of a run's cells, and how noisy each is: one in six has twice the middle's noise, one in six half."""
    scales = np.exp(rng.normal(0, 0.7, CELLS))
    process = list(np.repeat(np.arange(processes), rounds))
    cells = []
    for scale in scales:
        logs = [scale * noise(rng, processes, rounds).ravel() for _ in range(2)]
        cells.append(Pairs(list(np.exp(logs[0])), list(np.exp(logs[1]) / speed), process))
    return cells, scales


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(("processes", "rounds"), [(2, 2), (3, 1), (3, 3)])
def test_cells_that_share_cover_the_true_ratio(noise: str, processes: int, rounds: int) -> None:
    """95 % nominal over the cells of a run, 90 % asked for as above; and the noisiest of each run are not left out."""
    rng = np.random.default_rng(9)
    missed, noisiest = 0, 0
    for _ in range(TABLES):
        cells, scales = table_of(rng, NOISES[noise], 1.3, processes, rounds)
        wrong = [not r.low <= 1.3 <= r.high for r in statistics.paired_ratios(cells)]
        missed += sum(wrong)
        noisiest += sum(np.array(wrong)[np.argsort(scales)[-4:]])
    assert missed <= stats.binom.isf(1e-3, TABLES * CELLS, 0.10)
    assert noisiest <= stats.binom.isf(1e-3, TABLES * 4, 0.15)


def test_sharing_makes_intervals_of_few_processes_much_narrower() -> None:
    rng = np.random.default_rng(10)
    alone, shared = [], []
    for _ in range(TABLES):
        cells, _ = table_of(rng, by_process, 1.0, 2, 2)
        alone += [r.high / r.low - 1 for c in cells for r in statistics.paired_ratios([c])]
        shared += [r.high / r.low - 1 for r in statistics.paired_ratios(cells)]
    assert np.median(shared) < 0.6 * np.median(alone)


def test_a_noisy_cell_among_quiet_ones_keeps_its_own_scatter() -> None:
    """One cell fifty times as noisy: its interval is no narrower for the company."""
    rng = np.random.default_rng(11)
    missed = 0
    for _ in range(RUNS):
        cells, _ = table_of(rng, lambda r, p, n: r.normal(0, 0.002, (p, n)), 1.0, 3, 2)
        loud = np.exp(rng.normal(0, 0.1, 6) + np.repeat(rng.normal(0, 0.1, 3), 2))
        cells[0] = Pairs([1.0] * 6, list(loud), cells[0].process)
        ratio = statistics.paired_ratios(cells)[0]
        missed += not ratio.low <= 1.0 <= ratio.high
        assert ratio.high / ratio.low > 1.02
    assert missed <= at_most(0.15)


def test_a_quiet_cell_among_noisy_ones_does_not_pass_for_quiet() -> None:
    """Two processes that happen to agree say little: the company says how far apart two usually are."""
    same = Pairs([1.0] * 4, [1.0, 1.001, 1.0, 1.001], [0, 0, 1, 1])
    rng = np.random.default_rng(12)
    cells, _ = table_of(rng, by_process, 1.0, 2, 2)
    alone, shared = statistics.paired_ratios([same])[0], statistics.paired_ratios([same, *cells])[0]
    assert shared.high / shared.low > alone.high / alone.low


def test_medians_are_each_cells_own_and_one_process_shares_nothing() -> None:
    rng = np.random.default_rng(13)
    cells, _ = table_of(rng, normal, 1.2, 3, 3)
    single = Pairs([1.0, 1.1, 1.0], [1.0, 1.0, 1.1], [0, 0, 0])
    found = statistics.paired_ratios([*cells, single])
    assert [r.value for r in found] == [statistics.paired_ratios([c])[0].value for c in [*cells, single]]
    assert found[-1] == statistics.paired_ratios([single])[0]
    assert found[:-1] == statistics.paired_ratios(cells)


def test_a_table_of_cells_that_share_rarely_claims_a_difference_where_none_is() -> None:
    """Any false claim in a table of 18 cells, at no difference and at 1 %: at most one table in twenty."""
    rng = np.random.default_rng(14)
    tables, wrong = 40, 0
    for number in range(tables):
        speed = 1.01 if number % 2 else 1.0
        cells, scales = table_of(rng, by_process, speed, 3, 2)
        again = [
            Pairs(c.backend, list(np.array(c.backend) * np.exp(s * by_process(rng, 3, 2).ravel())), c.process)
            for c, s in zip(cells, scales, strict=True)
        ]
        pairs = zip(statistics.paired_ratios(cells), statistics.paired_ratios(again), strict=True)
        judged = statistics.judge_table([statistics.judge(ratio, control) for ratio, control in pairs])
        wrong += any(v.table in ("faster", "slower") for v in judged)
    assert wrong <= stats.binom.isf(1e-3, tables, 0.05)


def test_the_shared_scale_is_found_again() -> None:
    """Variances drawn from the distribution that the method assumes: its scale and freedom come back."""
    rng = np.random.default_rng(15)
    freedom = rng.choice([2.0, 4.0], 4000)
    true = 0.01 * 3 / rng.chisquare(3, 4000)
    seen = true * rng.chisquare(freedom) / freedom
    scale, borrowed = statistics._prior(seen, freedom)
    assert scale == pytest.approx(0.01, rel=0.1)
    assert borrowed == pytest.approx(3, rel=0.15)
    assert statistics._prior(0.01 * rng.chisquare(freedom) / freedom, freedom)[1] == statistics.MOST_BORROWED


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


def test_one_wild_round_does_not_move_the_ratio() -> None:
    """The middle of the paired ratios, worked out by hand: 1.9, 2.0, 2.0, 2.1, 2.2, 100.0."""
    baseline = [2.0, 1.9, 2.1, 2.0, 100.0, 2.2]
    ratio = statistics.paired_ratio(baseline, [1.0] * 6, [0, 0, 0, 1, 1, 1])
    assert ratio.value == pytest.approx((2.0 * 2.1) ** 0.5)


def test_processes_of_unequal_length_and_a_single_sample_work() -> None:
    found = statistics.interval([1.0, 1.1, 0.9, 1.0, 1.2], [0, 0, 0, 0, 1])
    assert found.low <= found.median <= found.high
    assert statistics.interval([2.0], [0]).median == pytest.approx(2.0)
