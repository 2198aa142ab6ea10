"""The train step and the loop around it."""

import collections
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from kbench import gradients as gradients_lib
from kbench import losses, metrics

# Columns of the metrics that a step returns, all float32.
LOSS, TOP_1, TOP_5, FINITE, LOSS_SCALE, GRADIENT_NORM = range(6)

# Steps in a row that overflow although the loss scale cannot fall further.
MAX_OVERFLOWS_AT_FLOOR = 50


class TrainingError(RuntimeError):
    """Training cannot go on; its text is one line."""


def make_forward(
    model: keras.Model, *, seed: int, training: bool
) -> Callable[..., tuple[list[tf.Tensor], list[tf.Tensor]]]:
    """Makes the model as a pure function of its variables.

    Args:
        model: a model whose outputs are logits or [logits, aux_logits...].
        seed: of dropout; the step and the replica are mixed in.
        training: whether batch norm and dropout train.

    Returns:
        `forward(weights, states, images, step, replica)` to outputs and new
        states, for the trainable and the other weights of the model. Nothing
        is assigned.
    """
    weights = model.trainable_weights
    states = model.non_trainable_weights
    known = {id(variable) for variable in model.weights}
    seeds = [v for v in model.variables if id(v) not in known]

    def forward(weight_values, state_values, images, step, replica):
        mapping = [
            *zip(weights, weight_values, strict=True),
            *zip(states, state_values, strict=True),
        ]
        if seeds and training:
            mixed = tf.random.experimental.stateless_fold_in(
                [seed, replica], step
            )
            for index, state in enumerate(seeds):
                folded = tf.random.experimental.stateless_fold_in(mixed, index)
                mapping.append((state, tf.bitcast(folded, tf.uint32)))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            outputs = model(images, training=training)
        if not isinstance(outputs, list | tuple):
            outputs = [outputs]
        return list(outputs), [scope.get_current_value(v) for v in states]

    return forward


def accuracy_metrics(outputs, labels) -> list[tf.Tensor]:
    """Top-1 and top-5 accuracy of a batch, float32 scalars."""
    return [
        tf.reduce_mean(metrics.top_k(outputs[0], labels, k)) for k in (1, 5)
    ]


def make_compute(
    forward: Callable,
    loss_fn: Callable,
    *,
    prepare: Callable = lambda images, labels: (images, labels),
    decayed: Sequence[bool] = (),
    weight_decay: float = 0.0,
    accuracy: bool = False,
    num_micro_batches: int = 1,
    xla: bool = False,
) -> Callable:
    """Makes forward and backward of one replica, a pure function.

    Args:
        forward: from `make_forward`.
        loss_fn: outputs and labels to the mean loss, float32 scalar.
        prepare: images and labels as they come to what the model takes.
        decayed: per weight, whether L2 counts it.
        weight_decay: factor of L2.
        accuracy: whether top-1 and top-5 are measured.
        num_micro_batches: the batch is split into so many; their gradients
            are averaged.
        xla: compile it.

    Returns:
        `compute(weights, states, images, labels, scale, step, replica)` to
        gradients of the scaled loss, [loss, top-1, top-5] and new states.
    """

    def micro_step(weights, states, images, labels, scale, step, replica):
        images, labels = prepare(images, labels)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            outputs, states = forward(weights, states, images, step, replica)
            loss = loss_fn(outputs, labels)
            if weight_decay:
                used = [
                    weight
                    for weight, counts in zip(weights, decayed, strict=True)
                    if counts
                ]
                loss += weight_decay * losses.l2(used)
            scaled = loss if scale is None else loss * scale
        measured = accuracy_metrics(outputs, labels) if accuracy else []
        return tape.gradient(scaled, weights), [loss, *measured], states

    compute = micro_step
    if num_micro_batches > 1:
        compute = _accumulated(micro_step, num_micro_batches)
    if xla:
        compute = tf.function(compute, jit_compile=True, autograph=False)
    return compute


def _accumulated(micro_step, count):
    """The mean over micro-batches that run one after the other."""

    def compute(weights, states, images, labels, scale, step, replica):
        images, labels = (
            tf.reshape(one, [count, -1, *one.shape[1:]])
            for one in (images, labels)
        )

        def one(index, states):
            return micro_step(
                weights,
                states,
                images[index],
                labels[index],
                scale,
                # Dropout differs between the micro-batches of a step.
                step * count + tf.cast(index, step.dtype),
                replica,
            )

        def body(index, gradients, measured, states):
            more_gradients, more_measured, states = one(index, states)
            gradients, measured = (
                [a + tf.cast(b, tf.float32) for a, b in zip(x, y, strict=True)]
                for x, y in (
                    (gradients, more_gradients),
                    (measured, more_measured),
                )
            )
            return index + 1, gradients, measured, states

        gradients, measured, states = one(tf.constant(0), states)
        gradients = [tf.cast(value, tf.float32) for value in gradients]
        _, gradients, measured, states = tf.while_loop(
            lambda index, *_: index < count,
            body,
            (tf.constant(1), gradients, measured, states),
            maximum_iterations=count - 1,
        )
        gradients, measured = (
            [value * (1.0 / count) for value in values]
            for values in (gradients, measured)
        )
        return gradients, measured, states

    return compute


@dataclasses.dataclass(frozen=True)
class TrainState:
    """The variables of a training, all created in the strategy's scope.

    Attributes:
        weights: trainable variables of the model.
        states: its other weights, such as batch-norm statistics.
        step: number of updates done, int64 scalar.
    """

    weights: Sequence[keras.Variable]
    states: Sequence[keras.Variable]
    step: tf.Variable


def make_train_step(
    *,
    replicas: Any,
    compute: Callable,
    state: TrainState,
    optimizer: Any,
    schedule: Callable,
    loss_scale: Any,
    averages: Any = None,
    clip: Callable = lambda gradients: (gradients, None),
    compress_gradients: bool = False,
) -> Callable[[tuple], tf.Tensor]:
    """Makes one step of training over all replicas.

    Args:
        replicas: a `strategies.Replicas`.
        compute: from `make_compute`.
        state: what is trained.
        optimizer: an `optimizers.Optimizer` of the weights.
        schedule: a `schedules.Schedule`.
        loss_scale: a `precision.LossScale`.
        averages: an `averages.MovingAverages`, or None.
        clip: from `gradients.make_clip`.
        compress_gradients: whether they travel in float16.

    Returns:
        A tf.function of (images, labels) per replica to a float32 vector of
        metrics in the order of `LOSS`, `TOP_1`...
    """

    def replica_step(images, labels):
        scale = loss_scale.value()
        scale_or_1 = 1.0 if scale is None else scale
        gradients, measured, states = compute(
            [tf.convert_to_tensor(one) for one in state.weights],
            [tf.convert_to_tensor(one) for one in state.states],
            *(images, labels, scale, tf.convert_to_tensor(state.step)),
            tf.distribute.get_replica_context().replica_id_in_sync_group,
        )
        gradients = gradients_lib.unscale(gradients, scale)
        if compress_gradients:
            gradients = gradients_lib.compress(gradients, scale)

        def update(gradients, measured, states):
            if compress_gradients:
                gradients = gradients_lib.unscale(gradients, scale)
            finite = True
            if loss_scale.can_overflow:
                finite = gradients_lib.all_finite(gradients)
                norm = tf.cond(
                    finite,
                    lambda: apply(gradients, states),
                    lambda: tf.constant(math.nan),
                )
                loss_scale.update(finite)
            else:
                norm = apply(gradients, states)
            unmeasured = [math.nan] * (FINITE - len(measured))
            return tf.stack(
                [*measured, *unmeasured]
                + [tf.cast(value, tf.float32) for value in (finite, scale_or_1)]
                + [norm]
            )

        return replicas.meet(update, gradients, measured, states)

    def apply(gradients, states):
        step = tf.convert_to_tensor(state.step)
        gradients, norm = clip(gradients)
        optimizer.update(gradients, schedule(step), step)
        for variable, value in zip(state.states, states, strict=True):
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)
        if averages is not None:
            averages.update(step)
        tf.raw_ops.AssignAddVariableOp(
            resource=state.step.handle, value=tf.ones([], tf.int64)
        )
        return tf.constant(math.nan) if norm is None else norm

    @tf.function(autograph=False)
    def train_step(batch):
        return replicas.first(replicas.run(replica_step, batch))

    return train_step


class FinishedStep(NamedTuple):
    """What the host knows of a step when it is done.

    Attributes:
        metrics: float32 vector in the order of `LOSS`, `TOP_1`...
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
) -> Iterator[FinishedStep]:
    """Runs steps and yields each when it is done.

    Args:
        step: takes a batch to a vector of metrics.
        batches: what `next` is called on.
        num_steps: how many steps.
        lag: steps that are under way while the host waits for an earlier
            one. 0 on a CPU, where a step is done when the call returns; 1
            on a GPU, which then never waits for the host.
    """
    running = collections.deque()
    last = time.perf_counter()
    for index in range(num_steps):
        asked = time.perf_counter()
        batch = next(batches)
        waited = time.perf_counter() - asked
        running.append((step(batch), waited))
        # Everything under way is fetched after the last step.
        while len(running) > (lag if index + 1 < num_steps else 0):
            vector, waited = running.popleft()
            vector = vector.numpy()
            now = time.perf_counter()
            yield FinishedStep(vector, now - last, waited)
            last = time.perf_counter() if lag == 0 else now


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
            TrainingError: the loss is not finite with `stop_on_nan`, or 50
                steps in a row overflowed although the scale cannot fall.
        """
        scale = float(metrics_vector[LOSS_SCALE])
        skipped = metrics_vector[FINITE] == 0
        self.skipped_steps += int(skipped)
        can_fall = self._dynamic and scale > 1
        self._at_floor = self._at_floor + 1 if skipped and not can_fall else 0
        if self._at_floor >= MAX_OVERFLOWS_AT_FLOOR:
            raise TrainingError(
                f'{self._at_floor} steps in a row overflowed up to step '
                f'{step} although the loss scale, {scale:g}, falls no '
                'further: the gradients are not finite in float16'
            )
        if math.isfinite(metrics_vector[LOSS]) or self.first_bad_step:
            return
        self.first_bad_step = step
        text = f'the loss is {metrics_vector[LOSS]} at step {step}'
        if self._stop_on_nan:
            raise TrainingError(text)
        self._warn(text)
