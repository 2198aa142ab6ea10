"""Statistics of step times: numbers in, numbers out."""

import dataclasses
import statistics
from collections.abc import Sequence

# Scales the median absolute deviation to the standard deviation of a normal
# distribution.
MAD_TO_SIGMA = 1.4826


@dataclasses.dataclass(frozen=True)
class Throughput:
    """Images per second over a run of steps.

    Attributes:
        mean: images of a step divided by the mean step time.
        standard_error: of the per-step rates.
        jitter: 1.4826 times their median absolute deviation.
    """

    mean: float
    standard_error: float
    jitter: float


def measure(
    step_times_sec: Sequence[float], images_per_step: int
) -> Throughput:
    """Summarises step times.

    Args:
        step_times_sec: duration of each step in seconds, at least one.
        images_per_step: images that all replicas together take per step.

    Raises:
        ValueError: no step, or a duration that is not positive.
    """
    if not step_times_sec or min(step_times_sec) <= 0:
        raise ValueError('throughput needs positive step times')
    rates = [images_per_step / seconds for seconds in step_times_sec]
    middle = statistics.median(rates)
    return Throughput(
        mean=images_per_step / statistics.fmean(step_times_sec),
        standard_error=statistics.pstdev(rates) / len(rates) ** 0.5,
        jitter=MAD_TO_SIGMA
        * statistics.median(abs(rate - middle) for rate in rates),
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two values beside the place, as NumPy has it.

    Args:
        values: at least one.
        percent: 0 to 100.
    """
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def summarize(values: Sequence[float]) -> dict[str, float]:
    """Mean, median, p50, p90, p99, standard error and jitter of numbers.

    Args:
        values: at least one, such as step times in seconds; the results
            have their unit.
    """
    middle = statistics.median(values)
    return {
        'mean': statistics.fmean(values),
        'median': middle,
        'p50': middle,
        'p90': percentile(values, 90),
        'p99': percentile(values, 99),
        'min': min(values),
        'max': max(values),
        'standard_error': statistics.pstdev(values) / len(values) ** 0.5,
        'jitter': MAD_TO_SIGMA
        * statistics.median(abs(value - middle) for value in values),
    }


def total_images_per_sec(
    num_steps: int, images_per_step: int, elapsed_sec: float
) -> float:
    """Rate of the whole timed run, everything between two steps included."""
    return num_steps * images_per_step / elapsed_sec
