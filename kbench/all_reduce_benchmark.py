"""Measures how fast tensors are added over the replicas, without a model.

What tf_cnn_benchmarks measured with its all_reduce_benchmark: nothing but the
reduction runs, on tensors of given shapes that lie on the replicas' devices.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

_SUM = tf.distribute.ReduceOp.SUM
# Reductions in a row within a measured step: starting it costs little then.
_ROUNDS = 5


@dataclasses.dataclass(frozen=True)
class AllReduceSpeed:
    """What was measured of one spec and one set of tensors.

    Attributes:
        spec: the all_reduce_spec.
        becomes: what adds the tensors; empty where it is refused.
        refused: why it cannot run here; empty where it can.
        num_tensors: added together.
        num_bytes: of all of them, on one replica.
        time_sec: median of one reduction of all tensors.
    """

    spec: str
    becomes: str = ''
    refused: str = ''
    num_tensors: int = 0
    num_bytes: int = 0
    time_sec: float = 0.0

    @property
    def bytes_per_sec(self) -> float:
        """Bytes of a replica that are added to those of the others."""
        return self.num_bytes / self.time_sec if self.time_sec else 0.0


def _create_tensors(replicas: Any, shapes: Sequence[Sequence[int]]) -> Any:
    """Float32 tensors of each replica: its number, from 1, everywhere."""

    def make(replica):
        value = tf.cast(replica + 1, tf.float32)
        return tuple(tf.fill(shape, value) for shape in shapes)

    return replicas.constant(make)


def make_round(
    replicas: Any, options: Any, rounds: int = _ROUNDS
) -> Callable[[Any], Any]:
    """Makes a function that adds tensors several times in a row.

    Args:
        replicas: a `strategies.Replicas` that joins.
        options: communication options, or None for those of the replicas.
        rounds: how often; each time after the first adds means.

    Returns:
        A tf.function of a tuple of tensors per replica to their sums.
    """
    count = replicas.num_replicas

    def replica_rounds(*tensors):
        context = tf.distribute.get_replica_context()
        # An argument has no device, and an all-reduce asks for one.
        sums = [tf.identity(one) for one in tensors]
        for number in range(rounds):
            if number:
                # All of a round are there before the next one begins.
                with tf.control_dependencies(sums):
                    sums = [value * (1.0 / count) for value in sums]
            sums = context.all_reduce(_SUM, sums, options)
        return sums

    @tf.function(autograph=False)
    def run(tensors):
        return replicas.run(replica_rounds, tensors)

    return run


def measure(
    replicas: Any,
    options: Any,
    shapes: Sequence[Sequence[int]],
    *,
    num_steps: int,
    num_warmup_steps: int,
) -> float:
    """Measures one way of adding tensors.

    Args:
        replicas: a `strategies.Replicas` that joins.
        options: communication options, or None for those of the replicas.
        shapes: of the float32 tensors that every replica adds.
        num_steps: measured steps, the same number in every process.
        num_warmup_steps: steps before them.

    Returns:
        Median seconds of one reduction of all tensors.
    """
    run = make_round(replicas, options)
    tensors = _create_tensors(replicas, shapes)
    times = []
    for _ in range(num_warmup_steps + num_steps):
        start = time.perf_counter()
        sums = replicas.first(run(tensors)[-1])
        # A GPU is done when the value is here.
        tf.reshape(sums, [-1])[:1].numpy()
        times.append((time.perf_counter() - start) / _ROUNDS)
    return statistics.median(times[num_warmup_steps:])
