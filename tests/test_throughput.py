"""Literal numbers in, literal numbers out."""

import pytest

from kbench import throughput


def test_steady_steps():
    speed = throughput.measure([0.5, 0.5, 0.5], 32)
    assert speed == throughput.Throughput(64.0, 0.0, 0.0)


def test_uneven_steps():
    speed = throughput.measure([1.0, 2.0, 4.0, 1.0], 8)
    # Rates 8, 4, 2, 8: mean time 2, deviation from the median 6 is 2, 2, 4, 2.
    assert speed.mean == 4.0
    assert speed.standard_error == pytest.approx((27 / 4) ** 0.5 / 2)
    assert speed.jitter == pytest.approx(1.4826 * 2.0)


def test_total():
    assert throughput.total_images_per_sec(10, 64, 4.0) == 160.0


@pytest.mark.parametrize('times', [[], [0.0], [1.0, -1.0]])
def test_no_steps(times):
    with pytest.raises(ValueError, match='positive'):
        throughput.measure(times, 1)


def test_summaries_of_numbers():
    found = throughput.summarize([0.4, 0.1, 0.2, 0.3, 1.0])
    assert found == {
        'mean': pytest.approx(0.4),
        'median': 0.3,
        'p50': 0.3,
        'p90': pytest.approx(0.76),
        'p99': pytest.approx(0.976),
        'min': 0.1,
        'max': 1.0,
        'standard_error': pytest.approx(0.1**0.5 / 5**0.5),
        'jitter': pytest.approx(1.4826 * 0.1),
    }
    assert throughput.percentile([7.0], 99) == 7.0
