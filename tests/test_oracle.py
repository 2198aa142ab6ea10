"""Modes, optimizers and replicas against plain NumPy.

The model has two scalars and its loss is the mean of x * A * B over images
of one pixel, so that a step is a line of arithmetic.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

from kbench import (
    loop,
    metrics,
    optimizers,
    precision,
    schedules,
    strategies,
    train,
)
from kbench import losses as losses_lib

MODES = ('parameter_server', 'replicated', 'independent')
RATE, STEPS, GLOBAL_BATCH = 0.05, 6, 4
SETTINGS = optimizers.Settings(
    momentum=0.9,
    rmsprop_decay=0.8,
    rmsprop_momentum=0.7,
    rmsprop_epsilon=0.5,
)


class _Product(keras.layers.Layer):
    def build(self, _):
        self.a = self.add_weight(name='a', shape=(), initializer='ones')
        self.b = self.add_weight(
            name='b', shape=(), initializer=keras.initializers.Constant(2.0)
        )

    def call(self, x):
        return x[:, 0, 0, :] * self.a * self.b


def _images():
    rng = np.random.default_rng(3)
    return rng.uniform(0.5, 1.5, (STEPS, GLOBAL_BATCH)).astype(np.float32)


def create_step(replicas, optimizer):
    """The train step of the two scalars, and their state."""
    with replicas.scope():
        inputs = keras.Input((1, 1, 1))
        model = keras.Model(inputs, _Product(name='product')(inputs))
        state = train.TrainState(
            weights=model.trainable_weights,
            states=[],
            step=tf.Variable(
                0,
                dtype=tf.int64,
                trainable=False,
                aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            ),
        )
        rule = optimizers.create(
            optimizer, state.weights, SETTINGS, [True, True]
        )
        loss_scale = precision.LossScale(1.0)
    step = train.make_train_step(
        replicas=replicas,
        compute=train.make_compute(
            train.make_forward(model, seed=0, training=True),
            lambda outputs, labels: tf.reduce_mean(outputs[0]),
        ),
        state=state,
        loss_scale=loss_scale,
        l2=losses_lib.L2(),
        apply=train.make_apply(
            state=state,
            optimizer=rule,
            schedule=schedules.constant(RATE),
        ),
    )
    return step, state


def _run(mode, num_replicas, optimizer):
    """Losses per step, and A and B at the end on the first replica."""
    devices = [f'/cpu:{index}' for index in range(num_replicas)]
    replicas = strategies.create(
        mode, devices=devices, parameter_device='/cpu:0'
    )
    step, state = create_step(replicas, optimizer)
    images = _images()
    share = GLOBAL_BATCH // num_replicas

    def batch(number):
        def part(replica):
            values = images[number][replica * share : (replica + 1) * share]
            return (
                tf.constant(values.reshape(share, 1, 1, 1)),
                tf.zeros([share], tf.int32),
            )

        return replicas.constant(part)

    losses = [
        float(done.metrics[metrics.LOSS])
        for done in loop.run_steps(step, map(batch, range(STEPS)), STEPS, 0)
    ]
    assert int(state.step.numpy()) == STEPS
    return losses, [float(weight.numpy()) for weight in state.weights]


def _update(optimizer, weights, gradient, slots):
    """One step of the rule in NumPy, in place."""
    s = SETTINGS
    if optimizer == 'sgd':
        weights -= RATE * gradient
    elif optimizer == 'momentum':
        slots['a'] = s.momentum * slots.get('a', 0) + gradient
        weights -= RATE * (gradient + s.momentum * slots['a'])
    else:
        slots['s'] = (
            s.rmsprop_decay * slots.get('s', np.ones(2))
            + (1 - s.rmsprop_decay) * gradient**2
        )
        slots['a'] = s.rmsprop_momentum * slots.get(
            'a', 0
        ) + RATE * gradient / np.sqrt(slots['s'] + s.rmsprop_epsilon)
        weights -= slots['a']


def _expected(mode, num_replicas, optimizer):
    copies = num_replicas if mode == 'independent' else 1
    images = _images().astype(np.float64).reshape(STEPS, copies, -1)
    weights = [np.array([1.0, 2.0]) for _ in range(copies)]
    slots = [{} for _ in range(copies)]
    losses = []
    for step in range(STEPS):
        means = images[step].mean(axis=1)
        losses.append(
            np.mean([m * w.prod() for m, w in zip(means, weights, strict=True)])
        )
        for mean, w, slot in zip(means, weights, slots, strict=True):
            _update(optimizer, w, mean * w[::-1].copy(), slot)
    return losses, weights[0]


@pytest.mark.parametrize('optimizer', ['sgd', 'momentum', 'rmsprop'])
@pytest.mark.parametrize('num_replicas', [1, 2, 4])
@pytest.mark.parametrize('mode', MODES)
def test_losses_and_weights_are_numpys(mode, num_replicas, optimizer):
    losses, weights = _run(mode, num_replicas, optimizer)
    wanted_losses, wanted_weights = _expected(mode, num_replicas, optimizer)
    np.testing.assert_allclose(losses, wanted_losses, rtol=2e-6)
    np.testing.assert_allclose(weights, wanted_weights, rtol=2e-6)


def test_independent_replicas_differ_from_joined_ones():
    joined = _run('replicated', 2, 'sgd')[1]
    apart = _run('independent', 2, 'sgd')[1]
    assert abs(joined[0] - apart[0]) > 1e-3


@pytest.mark.parametrize('num_replicas', [1, 2])
@pytest.mark.parametrize('mode', MODES)
def test_no_weight_changes_before_it_was_read(mode, num_replicas):
    """In the graph that runs, every update comes after the read.

    The gradient of A needs B and not A, so nothing but an explicit order
    keeps the update of A behind the read of A for the gradient of B; the
    graph optimizer must not lose it.
    """
    context.enable_run_metadata()
    try:
        _run(mode, num_replicas, 'sgd')
        metadata = context.export_run_metadata()
    finally:
        context.disable_run_metadata()
    updates = 0
    for function in metadata.function_graphs:
        nodes = {n.name: n for n in function.post_optimization_graph.node}
        for node in nodes.values():
            if node.op == 'ResourceApplyGradientDescent':
                updates += 1
                before = _ancestors(node, nodes)
                assert any(
                    one.op == 'ReadVariableOp' and one.input[0] == node.input[0]
                    for one in before
                ), node.name
    copies = 1 if mode == 'parameter_server' else num_replicas
    assert updates >= 2 * copies


def _ancestors(node, nodes):
    seen, waiting = {}, [node]
    while waiting:
        for name in waiting.pop().input:
            name = name.lstrip('^').partition(':')[0]
            if name in nodes and name not in seen:
                seen[name] = nodes[name]
                waiting.append(nodes[name])
    return list(seen.values())
