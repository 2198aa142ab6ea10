"""The train step, made from plain values."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from kbench import gradients as gradients_lib
from kbench import losses, metrics


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


def make_compute(
    forward: Callable,
    loss_fn: Callable,
    *,
    prepare: Callable = lambda images, labels: (images, labels),
    accuracy: bool = False,
    num_micro_batches: int = 1,
    xla: bool = False,
) -> Callable:
    """Makes forward and backward of one replica, a pure function.

    Args:
        forward: from `make_forward`.
        loss_fn: outputs and labels to the mean loss, float32 scalar.
        prepare: images and labels as they come to what the model takes.
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
            scaled = loss if scale is None else loss * scale
        measured = metrics.accuracies(outputs, labels) if accuracy else []
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


def make_apply(
    *,
    state: TrainState,
    optimizer: Any,
    schedule: Callable,
    averages: Any = None,
    clip: Callable = lambda gradients: (gradients, None),
) -> Callable:
    """Makes what a good step does to one copy of the variables.

    Args:
        state: what is trained.
        optimizer: an `optimizers.Optimizer` of the weights.
        schedule: a `schedules.Schedule`.
        averages: an `averages.MovingAverages`, or None.
        clip: from `gradients.make_clip`.

    Returns:
        `apply(gradients, states)` of mean float32 gradients and new states
        to their global norm before clipping, NaN where it is not known.
    """

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

    return apply


def _apply_if_finite(loss_scale, apply, gradients, states, measured):
    """Applies, or skips and counts; returns (norm, 1.0 if it applied)."""
    # Every weight was read once the loss is known. Without this, TensorFlow's
    # graph optimizer may let a weight change before another gradient has read
    # it: it drops the order of the two where their shapes connect them, and
    # then the shapes, which are constants.
    with tf.control_dependencies(measured):
        gradients = [tf.identity(gradient) for gradient in gradients]
    if not loss_scale.can_overflow:
        return apply(gradients, states), 1.0
    finite = gradients_lib.all_finite(gradients)
    norm = tf.cond(
        finite,
        lambda: apply(gradients, states),
        lambda: tf.constant(math.nan),
    )
    loss_scale.update(finite)
    return norm, tf.cast(finite, tf.float32)


def make_train_step(
    *,
    replicas: Any,
    compute: Callable,
    state: TrainState,
    loss_scale: Any,
    apply: Callable,
    l2: losses.L2,
    compress_gradients: bool = False,
    observe: Callable | None = None,
) -> Callable[[tuple], tf.Tensor]:
    """Makes one step of training over all replicas.

    Args:
        replicas: a `strategies.Replicas`.
        compute, apply: from `make_compute` and `make_apply`.
        state, l2: what is trained, and weight decay as part of the loss.
        loss_scale: a `precision.LossScale`.
        compress_gradients: whether they travel in float16, if they travel;
            the loss scale must look for overflow.
        observe: of `summaries.make_observe`.

    Returns:
        A function of (images, labels) per replica to a float32 vector of
        metrics in the order of `metrics.LOSS`..., then what `observe` gives.
    """
    compress = compress_gradients and replicas.share_gradients
    dtype = tf.float16 if compress else tf.float32

    def read():
        return (
            [tf.convert_to_tensor(one) for one in state.weights],
            [tf.convert_to_tensor(one) for one in state.states],
            loss_scale.value(),
            tf.convert_to_tensor(state.step),
        )

    def work(values, batch, replica):
        weights, states, scale, step = values
        gradients, measured, states = compute(
            weights, states, *batch, scale, step, replica
        )
        measured[0] += l2.loss(weights)
        if compress:
            return gradients_lib.compress(gradients), measured, states
        return gradients_lib.unscale(gradients, scale), measured, states

    def update(gradients, measured, states):
        scale = loss_scale.value()
        if compress:
            gradients = gradients_lib.unscale(gradients, scale)
        gradients = l2.add_gradients(gradients, state.weights)
        norm, finite = _apply_if_finite(
            loss_scale, apply, gradients, states, measured
        )
        more = observe and observe(gradients)
        return metrics.vector(measured, finite, scale, norm, more)

    like = (state.weights, state.states)
    return replicas.make_step(read, work, update, like, dtype)
