"""What the tests of the models share."""

import contextlib
import json
import pathlib

import keras
import tensorflow as tf

from kbench import models
from kbench.models import layer_types

_GOLDEN = pathlib.Path(__file__).parent / 'data' / 'golden_counts.json'

# The smallest images that leave more than one pixel in most layers.
_SMALL = {
    'alexnet': 67,
    'inception3': 75,
    'inception4': 75,
    'lenet': 28,
    'overfeat': 71,
    'trivial': 32,
}


def golden_rows():
    """The golden numbers, one dict a row."""
    return json.loads(_GOLDEN.read_text())['rows']


def spec_id(spec):
    """Names a test after a row of the table."""
    return f'{spec.name}-{spec.dataset}'


def small_size(spec):
    """An image size that is cheap and legal for a model."""
    if spec.dataset == 'cifar10':
        return 32
    return _SMALL.get(spec.name, 32)


@contextlib.contextmanager
def policy(name='float32', data_format='channels_last'):
    """Keras's dtype policy and data format for a while."""
    old = keras.config.dtype_policy(), keras.config.image_data_format()
    keras.config.set_dtype_policy(name)
    keras.config.set_image_data_format(data_format)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(old[0])
        keras.config.set_image_data_format(old[1])


@contextlib.contextmanager
def without_random_weights():
    """Weights start at zero: for tests that only look at shapes."""
    old = layer_types.make_initializer
    layer_types.make_initializer = lambda _: keras.initializers.Zeros()
    try:
        yield
    finally:
        layer_types.make_initializer = old


def loss(outputs, labels, spec):
    """Cross entropy of the logits and, weighted, of auxiliary logits."""
    weights = [1.0] + [spec.aux_loss_weight] * (len(outputs) - 1)
    return sum(
        weight
        * tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        )
        for weight, logits in zip(weights, outputs, strict=True)
    )


def gradients(model, spec, images, labels):
    """Loss, gradients and the new values of what a training pass assigns.

    The pass runs as the train loop runs it: inside a StatelessScope.
    """
    values = [(v, v.value) for v in model.variables]
    trainable = [v.value for v in model.trainable_variables]
    with tf.GradientTape() as tape:
        with keras.StatelessScope(values) as scope:
            outputs = model(images, training=True)
        total = loss(outputs, labels, spec)
    new_values = [
        (v, scope.get_current_value(v)) for v in model.non_trainable_variables
    ]
    return total, tape.gradient(total, trainable), new_values


def random_batch(spec, size, count, num_classes=10, seed=0):
    """Images in [-1, 1] in the compute dtype, and labels."""
    shape = (count, size, size, 3)
    if keras.config.image_data_format() == 'channels_first':
        shape = (count, 3, size, size)
    images = tf.random.stateless_uniform(shape, (seed, 1), -1.0, 1.0)
    labels = tf.random.stateless_uniform(
        (count,), (seed, 2), 0, num_classes, tf.int32
    )
    dtype = keras.config.dtype_policy().compute_dtype
    return tf.cast(images, dtype), labels


def train_on_two_replicas(spec, steps=2, count=2):
    """Trains a few plain SGD steps under MirroredStrategy.

    Returns:
        The model, the losses of every step and replica, and the names of
        the variables that had no gradient.
    """
    strategy = tf.distribute.MirroredStrategy(
        ['cpu:0', 'cpu:1'],
        cross_device_ops=tf.distribute.ReductionToOneDevice(),
    )
    size = small_size(spec)
    with strategy.scope():
        model = models.create_model(spec, 10, size)
    images, labels = random_batch(spec, size, count)
    missing = set()

    def step():
        total, grads, new_values = gradients(model, spec, images, labels)
        for variable, gradient in zip(
            model.trainable_variables, grads, strict=True
        ):
            if gradient is None:
                missing.add(variable.path)
        context = tf.distribute.get_replica_context()
        grads = context.all_reduce(tf.distribute.ReduceOp.MEAN, grads)
        for variable, gradient in zip(
            model.trainable_variables, grads, strict=True
        ):
            tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.value.handle,
                alpha=tf.constant(spec.learning_rate, gradient.dtype),
                delta=gradient,
            )
        for variable, value in new_values:
            tf.raw_ops.AssignVariableOp(
                resource=variable.value.handle, value=value
            )
        return total

    losses = [
        [float(x) for x in strategy.experimental_local_results(result)]
        for result in (strategy.run(step) for _ in range(steps))
    ]
    return model, losses, missing
