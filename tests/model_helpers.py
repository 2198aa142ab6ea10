"""What the tests of the models share."""

import contextlib
import json
import pathlib

import keras
import tensorflow as tf

from kbench import models, schedules, strategies, train
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


@contextlib.contextmanager
def _without_grappler():
    """Functions run as traced: what would take longer than two steps."""
    old = tf.config.optimizer.get_experimental_options()
    new = {'disable_meta_optimizer': True}
    tf.config.optimizer.set_experimental_options(new)
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options(
            {'disable_meta_optimizer': False, **old}
        )


def _trace(model, spec, images, labels):
    """Forward and backward of one replica as one concrete function.

    Traced once; each replica runs it on its own device.
    """
    forward = train.make_forward(model, seed=1, training=True)
    compute = train.make_compute(
        forward, lambda outputs, labels: loss(outputs, labels, spec)
    )

    @tf.function(autograph=False)
    def traced(weights, states, images, labels, step, replica):
        return compute(weights, states, images, labels, None, step, replica)

    def like(tensors):
        return [tf.TensorSpec(t.shape, t.dtype) for t in tensors]

    return traced.get_concrete_function(
        like(model.trainable_weights),
        like(model.non_trainable_weights),
        *like([images, labels]),
        tf.TensorSpec([], tf.int64),
        tf.TensorSpec([], tf.int32),
    )


def _make_replica_step(replicas, model, compute, learning_rate):
    weights, states = model.trainable_weights, model.non_trainable_weights

    def update(gradients, measured, new_states):
        for variable, gradient in zip(weights, gradients, strict=True):
            tf.raw_ops.ResourceApplyGradientDescent(
                var=variable.value.handle,
                alpha=tf.constant(learning_rate, gradient.dtype),
                delta=gradient,
            )
        for variable, value in zip(states, new_states, strict=True):
            tf.raw_ops.AssignVariableOp(
                resource=variable.value.handle, value=value
            )
        return measured[0]

    def replica_step(images, labels, step):
        gradients, measured, new_states = compute(
            [tf.convert_to_tensor(one) for one in weights],
            [tf.convert_to_tensor(one) for one in states],
            *(images, labels, step),
            tf.distribute.get_replica_context().replica_id_in_sync_group,
        )
        return replicas.meet(update, gradients, measured, new_states)

    return replica_step


def train_on_two_replicas(spec, steps=2, count=4):
    """Trains a few plain SGD steps on two replicas with their own images.

    The rate is the model's own for a batch of this size, without warm-up.

    The pass is traced, the update is not: that would cost most of the time.
    Four images, because the last stages see one pixel of each: statistics
    over two values make the gradients of deep networks overflow.

    Returns:
        The model, the mean loss of every step, and the names of the
        variables that had no gradient; where there are any, no step is done.
    """
    replicas = strategies.create(
        'replicated', devices=['/cpu:0', '/cpu:1'], parameter_device='/cpu:0'
    )
    size = small_size(spec)
    with replicas.strategy.scope():
        model = models.create_model(spec, 10, size)
    images, labels = replicas.constant(
        lambda replica: random_batch(spec, size, count, seed=replica)
    )
    with _without_grappler():
        compute = _trace(
            model, spec, replicas.first(images), replicas.first(labels)
        )
        missing = [
            variable.path
            for variable, gradient in zip(
                model.trainable_weights,
                compute.structured_outputs[0],
                strict=True,
            )
            if gradient is None
        ]
        if missing:
            return model, [], missing
        rate = schedules.model_rate(
            spec.schedule, spec.learning_rate, count * replicas.num_replicas
        )
        run = _make_replica_step(replicas, model, compute, rate)
        losses = [
            replicas.run(run, (images, labels, tf.constant(step, tf.int64)))
            for step in range(steps)
        ]
    return model, [float(replicas.first(loss)) for loss in losses], missing
