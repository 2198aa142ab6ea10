"""Weights divided among servers: parts, wholes, names."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbench import shards


@pytest.mark.parametrize(
    ('num_bytes', 'shard_bytes', 'num_ps', 'wanted'),
    [
        (1000, 0, 4, 1),
        (1000, 1000, 4, 1),
        (1000, 999, 4, 2),
        (1000, 300, 4, 4),
        (1000, 10, 3, 3),
        (0, 10, 3, 1),
    ],
)
def test_count_parts(num_bytes, shard_bytes, num_ps, wanted):
    assert shards.count_parts(num_bytes, shard_bytes, num_ps) == wanted


def _create_divided(count):
    """A Keras variable of 2 x 5 in parts, and one that is whole."""

    def creator(next_creator, **settings):
        value = settings.pop('initial_value')()
        if value.shape.rank < 2:
            return next_creator(initial_value=value, **settings)
        return shards.create(
            value,
            count,
            lambda i, part: next_creator(initial_value=part, **settings),
        )

    with tf.variable_creator_scope(creator):
        whole = keras.Variable(
            lambda shape, dtype: tf.reshape(tf.range(10.0), shape),
            shape=(2, 5),
            dtype='float32',
            name='kernel',
        )
        bias = keras.Variable(
            lambda shape, dtype: tf.ones(shape), shape=(3,), name='bias'
        )
    return whole, bias


@pytest.mark.parametrize('count', [2, 3, 10])
def test_a_keras_variable_in_parts(count):
    variables = _create_divided(count)
    kernel, bias = variables
    pieces = shards.expand(variables)
    assert len(pieces) == count + 1 and pieces[-1] is bias
    sizes = [piece.shape.num_elements() for piece in pieces[:-1]]
    assert sum(sizes) == 10 and max(sizes) - min(sizes) <= 1
    assert pieces[0].path == f'part-0-of-{count}/kernel'
    wanted = np.arange(10.0).reshape(2, 5)
    np.testing.assert_array_equal(kernel.numpy(), wanted)
    kernel.assign(wanted + 1)
    np.testing.assert_array_equal(tf.convert_to_tensor(kernel), wanted + 1)
    flat = np.concatenate([tf.convert_to_tensor(p) for p in pieces[:-1]])
    np.testing.assert_array_equal(flat, np.arange(1.0, 11.0))


def test_names_are_those_of_the_whole():
    variables = _create_divided(2)
    slots = {
        f'{piece.path}/Momentum': tf.Variable(tf.zeros(piece.shape))
        for piece in shards.expand(variables)
    }
    merged = shards.merge(slots, variables)
    assert sorted(merged) == ['bias/Momentum', 'kernel/Momentum']
    assert merged['kernel/Momentum'].shape == (2, 5)
    merged['kernel/Momentum'].assign(np.ones((2, 5), np.float32))
    np.testing.assert_array_equal(slots['part-1-of-2/kernel/Momentum'], [1] * 5)


def test_the_model_sees_wholes_and_gradients_come_in_parts():
    kernel, bias = _create_divided(3)

    def forward(weights, states, images, step, replica):
        return [images @ weights[0] + tf.reduce_sum(weights[1])], states

    pieces_forward = shards.over_pieces(forward, [kernel, bias], [])
    values = [
        tf.convert_to_tensor(one) for one in shards.expand([kernel, bias])
    ]
    images = tf.constant([[1.0, 10.0]])
    with tf.GradientTape() as tape:
        tape.watch(values)
        outputs, _ = pieces_forward(values, [], images, None, None)
    np.testing.assert_array_equal(
        outputs[0], images @ np.arange(10.0).reshape(2, 5) + 3
    )
    *parts, last = tape.gradient(outputs[0], values)
    np.testing.assert_array_equal(np.concatenate(parts), [1] * 5 + [10] * 5)
    np.testing.assert_array_equal(last, [5, 5, 5])


def test_nothing_divided_is_left_alone():
    bias = _create_divided(2)[1]
    assert shards.expand([bias]) == [bias]
    assert shards.over_pieces(len, [bias], []) is len
