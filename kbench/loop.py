"""The loop around a step: it counts, times, watches and tells."""

import collections
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from kbench import errors, metrics, throughput

# Steps in a row that overflow although the loss scale cannot fall further.
MAX_OVERFLOWS_AT_FLOOR = 50


class TrainingError(errors.UserError):
    """Training cannot go on; its text is one line."""


class NotFiniteError(TrainingError):
    """The loss is infinity or NaN."""


class FinishedStep(NamedTuple):
    """What the host knows of a step when it is done.

    Attributes:
        metrics: float32 vector in the order of `metrics.LOSS`...
        time_sec: from the end of the step before to the end of this one.
        input_wait_sec: how much of it went by waiting for the batch.
    """

    metrics: np.ndarray
    time_sec: float
    input_wait_sec: float


def run_steps(
    step: Callable[[tuple], tf.Tensor],
    batches: Iterator[tuple],
    num_steps: int,
    lag: int,
    drain: Callable[[int], bool] = lambda number: False,
    stop: Callable[[np.ndarray], bool] = lambda vector: False,
) -> Iterator[FinishedStep]:
    """Runs steps and yields each when it is done.

    Args:
        step: takes a batch to a vector of metrics.
        batches: what `next` is called on.
        num_steps: how many steps.
        lag: steps that are under way while the host waits for an earlier
            one. 0 on a CPU, where a step is done when the call returns; 1
            on a GPU, which then never waits for the host.
        drain: takes the number of a step, from 1, when it starts; where it
            returns True no step starts before that one is done, so that
            the variables can be read as it left them.
        stop: takes what a step returned; where it returns True no further
            step starts, and the iterator ends with those under way.
    """
    running = collections.deque()
    last = time.perf_counter()
    for number in range(1, num_steps + 1):
        asked = time.perf_counter()
        batch = next(batches)
        waited = time.perf_counter() - asked
        running.append((step(batch), waited))
        last_for_now = number == num_steps or drain(number)
        stopping = False
        while len(running) > (0 if last_for_now or stopping else lag):
            vector, waited = running.popleft()
            vector = vector.numpy()
            stopping = stopping or stop(vector)
            now = time.perf_counter()
            yield FinishedStep(vector, now - last, waited)
            # What the caller did with the step is no part of the next one,
            # unless that has run meanwhile.
            last = now if running else time.perf_counter()
        if stopping:
            return


class Watch:
    """Counts skipped steps and looks for losses that are not finite.

    Args:
        dynamic: whether the loss scale can fall.
        stop_on_nan: whether such a loss ends the run.
        warn: told once, with the step, of the first such loss.
    """

    def __init__(
        self, *, dynamic: bool, stop_on_nan: bool, warn: Callable[[str], None]
    ):
        self._dynamic = dynamic
        self._stop_on_nan = stop_on_nan
        self._warn = warn
        self._at_floor = 0
        self.skipped_steps = 0
        self.first_bad_step = None

    def see(self, step: int, metrics_vector: np.ndarray) -> None:
        """Takes in one finished step.

        Args:
            step: its number, for messages.
            metrics_vector: what the step returned.

        Raises:
            NotFiniteError: the loss is not finite, with `stop_on_nan`.
            TrainingError: 50 steps in a row overflowed although the scale
                cannot fall.
        """
        scale = float(metrics_vector[metrics.LOSS_SCALE])
        skipped = metrics_vector[metrics.FINITE] == 0
        self.skipped_steps += int(skipped)
        can_fall = self._dynamic and scale > 1
        self._at_floor = self._at_floor + 1 if skipped and not can_fall else 0
        if self._at_floor >= MAX_OVERFLOWS_AT_FLOOR:
            raise TrainingError(
                f'{self._at_floor} steps in a row overflowed up to step '
                f'{step} although the loss scale, {scale:g}, falls no '
                'further: the gradients are not finite in float16'
            )
        if math.isfinite(metrics_vector[metrics.LOSS]):
            return
        text = f'the loss is {metrics_vector[metrics.LOSS]} at step {step}'
        if self.first_bad_step is None:
            self.first_bad_step = step
            if not self._stop_on_nan:
                self._warn(text)
        if self._stop_on_nan:
            raise NotFiniteError(text)


@dataclasses.dataclass
class Record:
    """What a timed run measured, one entry per step.

    Attributes:
        images_per_step: images that all replicas together take.
        metrics: vectors in the order of `metrics.LOSS`, `metrics.TOP_1`...
        step_times_sec: from the end of a step to the end of the next.
        input_wait_sec: how much of that was waiting for the batch.
        elapsed_sec: of the whole run, all between two steps included.
    """

    images_per_step: int
    metrics: list[np.ndarray] = dataclasses.field(default_factory=list)
    step_times_sec: list[float] = dataclasses.field(default_factory=list)
    input_wait_sec: list[float] = dataclasses.field(default_factory=list)
    elapsed_sec: float = 0.0

    def add(self, finished: FinishedStep) -> None:
        """Takes in one step."""
        vector = finished.metrics
        if len(vector) > metrics.NUM_COLUMNS:
            # Histograms follow, which a long run cannot keep.
            vector = vector[: metrics.NUM_COLUMNS].copy()
        self.metrics.append(vector)
        self.step_times_sec.append(finished.time_sec)
        self.input_wait_sec.append(finished.input_wait_sec)

    def throughput(self) -> throughput.Throughput:
        """Images per second over the steps so far."""
        return throughput.measure(self.step_times_sec, self.images_per_step)

    def images_per_sec(self) -> float:
        """Images per second of the whole run."""
        return throughput.total_images_per_sec(
            len(self.metrics), self.images_per_step, self.elapsed_sec
        )


def run(
    steps: Iterator[FinishedStep],
    record: Record,
    on_step: Callable[[int, FinishedStep], bool | None],
) -> None:
    """Runs timed steps to their end.

    Args:
        steps: from `run_steps`.
        record: takes in what is measured, in addition to what it has.
        on_step: called with the number of each step, from 1, when it is
            done and recorded: shows, saves, and may raise; where it returns
            True the run ends, with no other step under way or after it.
    """
    start = time.perf_counter()
    try:
        for number, finished in enumerate(steps, 1):
            record.add(finished)
            if on_step(number, finished):
                break
    finally:
        record.elapsed_sec += time.perf_counter() - start
