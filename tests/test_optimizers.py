"""Every update rule against NumPy, TensorFlow 1 and Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from numerics_helpers import MODES, Linear, create_replicas

from kbench import optimizers

SETTINGS = optimizers.Settings(
    momentum=0.9,
    rmsprop_decay=0.8,
    rmsprop_momentum=0.7,
    rmsprop_epsilon=0.5,
    weight_decay=0.01,
)
RATES = (0.1, 0.1, 0.05, 0.05, 0.02)
KERNEL = np.array([[0.5, -1.0], [2.0, 0.25], [-0.75, 1.5]], np.float32)
BIAS = np.array([0.1, -0.2], np.float32)


def gradients_at(step):
    """Gradients of the kernel and the bias, different at every step."""
    kernel = np.cos(np.arange(6, dtype=np.float32).reshape(3, 2) + step)
    bias = np.sin(np.arange(2, dtype=np.float32) - step) * 3
    return kernel.astype(np.float32), bias.astype(np.float32)


def make_variables():
    return [
        keras.Variable(KERNEL, name='kernel'),
        keras.Variable(BIAS, name='bias'),
    ]


def run_ours(name):
    """Five steps; returns the values after each."""
    variables = make_variables()
    optimizer = optimizers.create(name, variables, SETTINGS, [True, False])

    @tf.function(autograph=False)
    def update(kernel, bias, rate, step):
        optimizer.update([kernel, bias], rate, step)

    values = []
    for step, rate in enumerate(RATES):
        update(
            *map(tf.constant, gradients_at(step)),
            tf.constant(rate, tf.float32),
            tf.constant(step, tf.int64),
        )
        values.append([variable.numpy() for variable in variables])
    return values


# The rules in NumPy: (weight, gradient, rate, step, decayed, slots) to the
# new weight; slots is a dict that starts empty.
def np_sgd(w, g, lr, step, decayed, s):
    return w - lr * g


def np_momentum(w, g, lr, step, decayed, s):
    s['a'] = 0.9 * s.get('a', 0.0) + g
    return w - lr * (g + 0.9 * s['a'])


def np_rmsprop(w, g, lr, step, decayed, s):
    s['s'] = 0.8 * s.get('s', 1.0) + 0.2 * g**2
    s['a'] = 0.7 * s.get('a', 0.0) + lr * g / np.sqrt(s['s'] + 0.5)
    return w - s['a']


def np_moments(g, step, s):
    t = step + 1
    s['m'] = 0.9 * s.get('m', 0.0) + 0.1 * g
    s['v'] = 0.999 * s.get('v', 0.0) + 0.001 * g**2
    return s['m'], s['v'], 1 - 0.9**t, 1 - 0.999**t


def np_adam(w, g, lr, step, decayed, s):
    m, v, c1, c2 = np_moments(g, step, s)
    return w - lr * np.sqrt(c2) / c1 * m / (np.sqrt(v) + 1e-7)


def np_adamw(w, g, lr, step, decayed, s):
    return np_adam(w - lr * 0.01 * decayed * w, g, lr, step, decayed, s)


def np_lars(w, g, lr, step, decayed, s):
    if decayed:
        norm = np.linalg.norm(w)
        ratio = 0.001 * norm / (np.linalg.norm(g) + 0.01 * norm)
        g = ratio * (g + 0.01 * w)
    s['a'] = 0.9 * s.get('a', 0.0) + lr * g
    return w - s['a']


def np_lamb(w, g, lr, step, decayed, s):
    w = w - lr * 0.01 * decayed * w
    m, v, c1, c2 = np_moments(g, step, s)
    u = (m / c1) / (np.sqrt(v / c2) + 1e-7)
    return w - lr * np.linalg.norm(w) / np.linalg.norm(u) * u


NUMPY = {
    'sgd': np_sgd,
    'momentum': np_momentum,
    'rmsprop': np_rmsprop,
    'adam': np_adam,
    'adamw': np_adamw,
    'lars': np_lars,
    'lamb': np_lamb,
}


def test_every_optimizer_has_an_oracle():
    assert NUMPY.keys() == optimizers.OPTIMIZERS.keys()


@pytest.mark.parametrize('name', NUMPY)
def test_five_steps_as_numpy(name):
    weights = [KERNEL.astype(np.float64), BIAS.astype(np.float64)]
    slots = [{}, {}]
    for step, (rate, found) in enumerate(
        zip(RATES, run_ours(name), strict=True)
    ):
        for index, (gradient, decayed) in enumerate(
            zip(gradients_at(step), (True, False), strict=True)
        ):
            weights[index] = NUMPY[name](
                weights[index],
                gradient.astype(np.float64),
                rate,
                step,
                decayed,
                slots[index],
            )
            np.testing.assert_allclose(
                found[index], weights[index], rtol=2e-5, atol=1e-6
            )


TF1 = {
    'sgd': tf.compat.v1.train.GradientDescentOptimizer,
    'momentum': lambda rate: tf.compat.v1.train.MomentumOptimizer(
        rate, 0.9, use_nesterov=True
    ),
    'rmsprop': lambda rate: tf.compat.v1.train.RMSPropOptimizer(
        rate, decay=0.8, momentum=0.7, epsilon=0.5
    ),
}


@pytest.mark.parametrize('name', TF1)
def test_to_the_digit_as_tensorflow_1(name):
    v1, ours_by_step = tf.compat.v1, run_ours(name)
    with tf.Graph().as_default(), v1.Session() as session:
        variables = [
            v1.get_variable('kernel', initializer=KERNEL, use_resource=True),
            v1.get_variable('bias', initializer=BIAS, use_resource=True),
        ]
        rate = v1.placeholder(tf.float32)
        fed = [v1.placeholder(tf.float32, v.shape) for v in variables]
        update = TF1[name](rate).apply_gradients(
            list(zip(fed, variables, strict=True))
        )
        session.run(v1.global_variables_initializer())
        for step, found in enumerate(ours_by_step):
            feeds = dict(zip(fed, gradients_at(step), strict=True))
            session.run(update, {**feeds, rate: RATES[step]})
            for ours, theirs in zip(found, session.run(variables), strict=True):
                np.testing.assert_array_equal(ours, theirs)


KERAS = {
    'adam': keras.optimizers.Adam,
    'adamw': lambda: keras.optimizers.AdamW(weight_decay=0.01),
    'lamb': lambda: keras.optimizers.Lamb(weight_decay=0.01),
}


@pytest.mark.parametrize('name', KERAS)
def test_as_keras(name):
    variables = make_variables()
    theirs = KERAS[name]()
    if name != 'adam':
        theirs.exclude_from_weight_decay(var_names=['bias'])
    theirs.build(variables)
    for step, found in enumerate(run_ours(name)):
        theirs.learning_rate = RATES[step]
        theirs.apply([tf.constant(g) for g in gradients_at(step)], variables)
        for ours, variable in zip(found, variables, strict=True):
            np.testing.assert_allclose(ours, variable.numpy(), rtol=1e-5)


@pytest.mark.parametrize('num_replicas', (1, 2))
@pytest.mark.parametrize('mode', MODES)
@pytest.mark.parametrize('name', NUMPY)
def test_same_weights_in_every_mode(name, mode, num_replicas, devices):
    """Two replicas whose gradients have the mean of the single one's."""
    start = np.array([1.0, -2.0], np.float32)
    training = Linear(
        create_replicas(mode, devices(num_replicas)),
        start,
        rate=0.1,
        optimizer=name,
        settings=SETTINGS,
    )
    weight, slots = start.astype(np.float64), {}
    # Independent replicas see the same images, to stay together.
    spread = 0.25 if mode != 'independent' else 0.0
    for step in range(3):
        images = np.array([[0.5, 1.0]]) * (step + 1)
        sides = (spread, -spread) if num_replicas == 2 else (0.0,)
        training.run(*[images + side for side in sides])
        weight = NUMPY[name](weight, images[0], 0.1, step, True, slots)
    for copy in training.copies(training.weight):
        np.testing.assert_allclose(copy, weight, rtol=1e-5)
    assert int(training.state.step.numpy()) == 3


def test_no_two_optimizers_share_a_slot():
    """A checkpoint of another optimizer must not pass for one's own."""
    seen = {}
    for name in NUMPY:
        slots = optimizers.create(
            name, make_variables(), SETTINGS, [True, False]
        ).slots
        seen[name] = frozenset(slots)
        assert bool(slots) == (name != 'sgd')
    assert len(set(seen.values())) == len(seen)


@pytest.mark.parametrize(
    'name, starts',
    (
        ('momentum', {'Momentum': 0.0}),
        ('rmsprop', {'RMSProp': 1.0, 'RMSProp_1': 0.0}),
        ('adam', {'Adam': 0.0, 'Adam_1': 0.0}),
    ),
)
def test_slots_have_the_names_and_first_values_of_tensorflow_1(name, starts):
    variables = make_variables()
    optimizer = optimizers.create(name, variables, SETTINGS, [True, False])
    expected = {
        f'{variable.path}/{slot}': np.full(variable.shape, value)
        for variable in variables
        for slot, value in starts.items()
    }
    assert optimizer.slots.keys() == expected.keys()
    for slot, value in expected.items():
        np.testing.assert_array_equal(optimizer.slots[slot].numpy(), value)


def test_lars_with_a_zero_weight_moves():
    """Where a norm is zero the rate is the plain one."""
    variable = keras.Variable(np.zeros(2, np.float32), name='kernel')
    optimizer = optimizers.create('lars', [variable], SETTINGS, [True])
    optimizer.update(
        [tf.constant([1.0, 2.0])], tf.constant(0.1), tf.constant(0)
    )
    np.testing.assert_allclose(variable.numpy(), [-0.1, -0.2], rtol=1e-6)


@pytest.mark.parametrize('name', ('sgd', 'momentum', 'rmsprop', 'lars'))
def test_float16_variables(name):
    """Norms of float16 variables are float32: these would overflow."""
    start = np.full(1000, 20.0, np.float16)
    variable = keras.Variable(start, dtype='float16', name='kernel')
    optimizer = optimizers.create(name, [variable], SETTINGS, [True])
    optimizer.update([tf.fill([1000], 30.0)], tf.constant(0.1), tf.constant(0))
    expected = NUMPY[name](
        start.astype(np.float64), np.full(1000, 30.0), 0.1, 0, True, {}
    )
    np.testing.assert_allclose(variable.numpy(), expected, rtol=2e-3)
    assert {slot.dtype for slot in optimizer.slots.values()} <= {tf.float16}
