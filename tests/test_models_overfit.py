"""One model of each family learns twenty real digits by heart."""

import keras
import model_helpers
import pytest
import sklearn.datasets
import tensorflow as tf

from kbench import models

_IMAGES = 20


def _digits(size, classes=10):
    """Twenty digits, 8x8 grey pixels of 0 to 16, as images in [-1, 1].

    Those below `classes` only.
    """
    images, labels = sklearn.datasets.load_digits(return_X_y=True)
    images, labels = images[labels < classes], labels[labels < classes]
    images = images[:_IMAGES].reshape(-1, 8, 8, 1).repeat(3, axis=3)
    images = tf.image.resize(images / 8.0 - 1.0, (size, size))
    return tf.cast(images, tf.float32), tf.cast(labels[:_IMAGES], tf.int32)


# Name, data set, learning rate of Adam.
_ROWS = (
    ('trivial', 'imagenet', 3e-4),
    ('lenet', 'imagenet', 1e-3),
    ('alexnet', 'cifar10', 1e-3),
    ('alexnet', 'imagenet', 3e-4),
    ('overfeat', 'imagenet', 3e-4),
    ('vgg11', 'imagenet', 1e-4),
    ('googlenet', 'imagenet', 3e-4),
    ('inception_v1', 'imagenet', 1e-3),
    ('inception_v2', 'imagenet', 1e-3),
    ('official_resnet18', 'imagenet', 1e-3),
    ('resnet20_v2', 'cifar10', 1e-2),
    ('densenet40_k12', 'cifar10', 1e-2),
    ('mobilenet', 'imagenet', 1e-3),
    ('nasnet', 'imagenet', 1e-3),
)


def test_every_family_has_a_row():
    names = {(name, dataset) for name, dataset, _ in _ROWS}
    for family in models._FAMILIES:
        rows = {(spec.name, spec.dataset) for spec in family.SPECS}
        assert rows & names, family.__name__


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'dataset', 'learning_rate'),
    _ROWS,
    ids=[f'{name}-{dataset}' for name, dataset, _ in _ROWS],
)
def test_overfits_twenty_digits(name, dataset, learning_rate):
    keras.utils.set_random_seed(1)
    spec = models.get_spec(name, dataset)
    size = model_helpers.small_size(spec)
    model = models.create_model(spec, 10, size)
    # One hidden unit, which is zero for some images, cannot tell ten digits
    # apart; it tells two.
    images, labels = _digits(size, 2 if name == 'trivial' else 10)
    optimizer = keras.optimizers.Adam(learning_rate)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            outputs = model(images, training=True)
            total = model_helpers.loss(outputs, labels, spec)
        variables = model.trainable_variables
        optimizer.apply(
            tape.gradient(total, [v.value for v in variables]), variables
        )
        return model_helpers.loss(outputs[:1], labels, spec)

    losses = []
    while len(losses) < 300 and (not losses or losses[-1] >= 0.1):
        losses.append(float(step()))
    assert losses[0] > 1
    assert losses[-1] < 0.1, losses[::10]
