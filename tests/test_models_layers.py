"""The layers beneath the models, against plain NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kbench import models
from kbench.models import batch_norm, layer_types, layers


def _random(shape, seed=0):
    return np.random.default_rng(seed).normal(0.5, 2, shape).astype('f')


@pytest.mark.parametrize('scale', [True, False])
def test_batch_norm_in_training(scale):
    layer = batch_norm.BatchNorm(0.9, 1e-3, scale=scale, name='bn')
    x = _random((4, 3, 3, 5))
    y = layer(x, training=True)
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    expected = (x - mean) / np.sqrt(variance + 1e-3)
    np.testing.assert_allclose(y, expected, atol=1e-5)
    np.testing.assert_allclose(layer.moving_mean, 0.1 * mean, atol=1e-6)
    # The unbiased variance: 36 values a channel.
    np.testing.assert_allclose(
        layer.moving_variance, 0.9 + 0.1 * variance * 36 / 35, rtol=1e-5
    )
    names = [weight.name for weight in layer.trainable_weights]
    assert names == (['gamma', 'beta'] if scale else ['beta'])


def test_batch_norm_in_inference():
    layer = batch_norm.BatchNorm(0.9, 1e-3, name='bn')
    x = _random((2, 3, 3, 4))
    layer.build(x.shape)
    for index, weight in enumerate(layer.weights):
        weight.assign(np.linspace(0.5, 1.5, 4) + index)
    y = layer(x, training=False)
    gamma, beta, mean, variance = (w.numpy() for w in layer.weights)
    expected = (x - mean) / np.sqrt(variance + 1e-3) * gamma + beta
    np.testing.assert_allclose(y, expected, atol=1e-4)


@pytest.mark.parametrize(
    ('policy', 'tolerance'),
    [('float32', 1e-5), ('mixed_bfloat16', 0.03), ('mixed_float16', 0.004)],
)
def test_batch_norm_gradient_in_every_precision(policy, tolerance):
    x = _random((4, 3, 3, 5))
    weights = _random((4, 3, 3, 5), seed=1)

    def gradients(layer, dtype):
        images = tf.cast(x, dtype)
        layer.build(x.shape)
        with tf.GradientTape() as tape:
            tape.watch(images)
            y = tf.cast(layer(images, training=True), tf.float32)
            total = tf.reduce_mean(y * weights)
        return tape.gradient(
            total, [images, layer.gamma.value, layer.beta.value]
        )

    with models.keras_config(policy):
        dtype = keras.config.dtype_policy().compute_dtype
        ours = gradients(batch_norm.BatchNorm(0.9, 1e-3, name='bn'), dtype)
    theirs = gradients(keras.layers.BatchNormalization(epsilon=1e-3), 'float32')
    assert ours[0].dtype == dtype
    assert ours[1].dtype == ours[2].dtype == 'float32'
    for actual, expected in zip(ours, theirs, strict=True):
        scale = np.abs(expected).max()
        np.testing.assert_allclose(
            tf.cast(actual, tf.float32) / scale,
            expected / scale,
            atol=tolerance,
        )


def test_batch_norm_only_assigns_in_training_and_through_the_scope():
    layer = batch_norm.BatchNorm(name='bn')
    x = _random((2, 2, 2, 3))
    layer.build(x.shape)
    with keras.StatelessScope() as scope:
        layer(x, training=True)
    assert scope.get_current_value(layer.moving_mean) is not None
    np.testing.assert_array_equal(layer.moving_mean, np.zeros(3))
    with keras.StatelessScope() as scope:
        layer(x, training=False)
    assert scope.get_current_value(layer.moving_mean) is None
    assert layer.moving_mean.aggregation == 'only_first_replica'
    assert not layer.moving_mean.trainable


@pytest.mark.parametrize('size', [7, 8])
@pytest.mark.parametrize(('kernel', 'strides'), [(7, 2), (3, 2), (3, 1)])
def test_fixed_padding_is_zeros_all_around(size, kernel, strides):
    x = _random((1, size, size, 2))
    layer = layer_types.Conv(3, kernel, strides, 'fixed', name='conv')
    y = layer(x)
    pad = kernel // 2
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    expected = tf.nn.conv2d(padded, layer.kernel.value, strides, 'VALID')
    np.testing.assert_allclose(y, expected, atol=1e-5)
    assert layer.compute_output_shape(x.shape) == tuple(y.shape)


@pytest.mark.parametrize('size', [6, 7])
@pytest.mark.parametrize('shift', [0, 1])
def test_subsample_takes_every_second_pixel(size, shift):
    inputs = keras.Input((size, size, 2))
    outputs = layers.subsample(inputs, 2, channels=6, shift=shift, name='s')
    x = _random((1, size, size, 2))
    y = keras.Model(inputs, outputs)(x)
    expected = np.zeros((1, (size + 1) // 2, (size + 1) // 2, 6), 'f')
    taken = x[:, shift::2, shift::2]
    expected[:, : taken.shape[1], : taken.shape[2], 2:4] = taken
    np.testing.assert_array_equal(y, expected)


def test_flatten_keeps_its_order_in_both_layouts():
    x = _random((2, 3, 4, 5))
    with models.keras_config(data_format='NCHW'):
        inputs = keras.Input((5, 3, 4))
        model = keras.Model(inputs, layers.flatten(inputs))
    y = model(x.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(y, x.reshape(2, -1))


def test_drop_path_drops_whole_images():
    layer = layer_types.Dropout(0.5, whole_images=True, name='drop')
    y = layer(np.ones((64, 2, 2, 3), 'f'), training=True).numpy()
    per_image = y.reshape(64, -1)
    assert (per_image == per_image[:, :1]).all()
    assert set(per_image[:, 0]) == {0.0, 2.0}


def test_layers_of_one_shape_start_differently():
    first, second = (
        layer_types.Conv(4, 3, initializer=initializer, name=name)
        for name, initializer in (('a', 0.1), ('b', 0.1))
    )
    for layer in (first, second):
        layer.build((None, 8, 8, 4))
    assert np.abs(first.kernel - second.kernel).max() > 0.01
    assert abs(np.std(first.kernel) - 0.1) < 0.03
