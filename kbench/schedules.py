"""Learning rates as functions of the step.

A schedule takes the number of updates done so far, a scalar integer tensor,
and returns the rate of the next update, a scalar float32 tensor. The first
update sees step 0. A rate that changes at a boundary holds from the step that
equals the boundary on.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import tensorflow as tf

Schedule = Callable[[tf.Tensor], tf.Tensor]


def constant(rate: float) -> Schedule:
    """The same rate at every step."""
    return lambda step: tf.constant(rate, tf.float32)


def exponential_decay(
    rate: float, decay_steps: int, factor: float, minimum: float = 0.0
) -> Schedule:
    """Staircase: max(minimum, rate * factor ** floor(step / decay_steps)).

    Args:
        rate: rate of step 0.
        decay_steps: steps between two changes, at least 1.
        factor: what each change multiplies the rate by.
        minimum: floor of the rate.
    """

    def schedule(step):
        decays = tf.cast(step // decay_steps, tf.float32)
        return tf.maximum(rate * tf.pow(factor, decays), minimum)

    return schedule


def piecewise(boundaries: Sequence[int], rates: Sequence[float]) -> Schedule:
    """rates[i] from step boundaries[i - 1] on.

    Args:
        boundaries: steps in rising order.
        rates: one rate more than boundaries.
    """
    if len(rates) != len(boundaries) + 1:
        raise ValueError(f'{len(boundaries)} boundaries, {len(rates)} rates')

    def schedule(step):
        passed = tf.cast(step, tf.int64) >= tf.constant(boundaries, tf.int64)
        index = tf.reduce_sum(tf.cast(passed, tf.int32))
        return tf.gather(tf.constant(rates, tf.float32), index)

    return schedule


def cosine(rate: float, total_steps: int, minimum: float = 0.0) -> Schedule:
    """minimum + (rate - minimum) * (1 + cos(pi * step / total_steps)) / 2.

    Source: Loshchilov and Hutter, SGDR, equation 5, without restarts. After
    `total_steps` the rate stays at its minimum.
    """

    def schedule(step):
        done = tf.minimum(tf.cast(step, tf.float32) / total_steps, 1.0)
        return minimum + (rate - minimum) * 0.5 * (1 + tf.cos(math.pi * done))

    return schedule


def with_warmup(schedule: Schedule, warmup_steps: int, rate: float) -> Schedule:
    """rate * step / warmup_steps before warmup_steps, then the schedule."""
    if warmup_steps == 0:
        return schedule

    def warmed(step):
        rising = rate * tf.cast(step, tf.float32) / warmup_steps
        return tf.where(step < warmup_steps, rising, schedule(step))

    return warmed


@dataclasses.dataclass(frozen=True)
class ModelRule:
    """The schedule that a model was published with.

    Attributes:
        epochs: boundaries in epochs.
        rates: rate from each boundary on, as a multiple of the base rate.
        warmup_epochs: length of the linear warm-up.
        images_per_rate: the base rate is for a global batch of so many
            images and grows in proportion; None: it never changes.
    """

    epochs: tuple[float, ...] = ()
    rates: tuple[float, ...] = (1.0,)
    warmup_epochs: float = 0.0
    images_per_rate: int | None = None


MODEL_RULES = {
    'constant': ModelRule(),
    # Goyal et al., Accurate, Large Minibatch SGD, section 5.1.
    'imagenet_resnet': ModelRule(
        epochs=(30, 60, 80, 90),
        rates=(1.0, 0.1, 0.01, 0.001, 0.0001),
        warmup_epochs=5,
        images_per_rate=256,
    ),
    # tf_cnn_benchmarks gives the official models 0.0125 for 32 images, which
    # is 0.1 for 256, and no warm-up.
    'official_resnet': ModelRule(
        epochs=(30, 60, 80, 90),
        rates=(1.0, 0.1, 0.01, 0.001, 0.0001),
        images_per_rate=256,
    ),
    # He et al., Deep Residual Learning, section 4.2, whose 32k and 48k steps
    # of 128 images are epochs 82 and 123; the last rate as tf_cnn_benchmarks.
    'cifar_resnet': ModelRule(
        epochs=(82, 123, 300), rates=(1.0, 0.1, 0.01, 0.002)
    ),
    # Huang et al., Densely Connected Networks, section 4.2, and one more.
    'densenet': ModelRule(
        epochs=(150, 225, 300), rates=(1.0, 0.1, 0.01, 0.001)
    ),
    # tf_cnn_benchmarks: a tenth every 100 epochs.
    'cifar_alexnet': ModelRule(
        epochs=(100, 200, 300), rates=(1.0, 0.1, 0.01, 0.001)
    ),
}


def to_steps(epochs: float, steps_per_epoch: float) -> int:
    """Whole steps in a number of epochs."""
    # 0.29 * 100 is 28.999999999999996: a whole number is meant there.
    return math.floor(round(epochs * steps_per_epoch, 6))


def model_rate(
    rule_name: str, base_rate: float, global_batch_size: int
) -> float:
    """The highest rate of a row of `MODEL_RULES`, for a batch.

    Args:
        rule_name: a key of `MODEL_RULES`.
        base_rate: the model's base rate.
        global_batch_size: images per update over all replicas.
    """
    images_per_rate = MODEL_RULES[rule_name].images_per_rate
    if images_per_rate is None:
        return base_rate
    return base_rate * global_batch_size / images_per_rate


def model_schedule(
    rule_name: str,
    base_rate: float,
    *,
    steps_per_epoch: float,
    global_batch_size: int,
) -> Schedule:
    """The schedule of a row of `MODEL_RULES` for a data set and a batch.

    Args:
        rule_name: a key of `MODEL_RULES`.
        base_rate: the model's base rate.
        steps_per_epoch: updates per epoch, a fraction included.
        global_batch_size: images per update over all replicas.
    """
    rule = MODEL_RULES[rule_name]
    rate = model_rate(rule_name, base_rate, global_batch_size)
    schedule = piecewise(
        [to_steps(epoch, steps_per_epoch) for epoch in rule.epochs],
        [rate * factor for factor in rule.rates],
    )
    warmup_steps = to_steps(rule.warmup_epochs, steps_per_epoch)
    return with_warmup(schedule, warmup_steps, rate)
