"""Trainings small enough to know every number of."""

import keras
import tensorflow as tf

from kbench import (
    averages,
    gradients,
    losses,
    metrics,
    optimizers,
    precision,
    schedules,
    strategies,
    train,
)
from kbench.models import layers

MODES = ('parameter_server', 'replicated', 'independent')


def create_replicas(mode, devices):
    """Replicas of a mode on CPU devices."""
    return strategies.create(mode, devices=devices, parameter_device='/cpu:0')


class Linear:
    """A training whose loss is the mean of x . w: its gradient is mean(x).

    Its one state, `moving`, becomes the mean of the replica's images, as
    the statistics of a batch norm do.
    """

    def __init__(
        self,
        replicas,
        start,
        *,
        rate=1.0,
        optimizer='sgd',
        settings=None,
        scale=1.0,
        compute_dtype='float32',
        dynamic=False,
        growth_steps=1000,
        decay=None,
        clip=(None, None),
        compress=False,
        weight_decay=0.0,
        num_micro_batches=1,
        xla=False,
    ):
        self.replicas = replicas
        with replicas.strategy.scope():
            self.weight = keras.Variable(start, dtype='float32', name='w')
            self.moving = keras.Variable(
                0.0,
                trainable=False,
                dtype='float32',
                name='moving',
                aggregation='only_first_replica',
            )
            self.state = train.TrainState(
                [self.weight],
                [self.moving],
                tf.Variable(
                    0,
                    dtype=tf.int64,
                    trainable=False,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                ),
            )
            self.optimizer = optimizers.create(
                optimizer,
                [self.weight],
                settings or optimizers.Settings(),
                [True],
            )
            self.loss_scale = precision.LossScale(
                scale,
                dynamic=dynamic,
                growth_steps=growth_steps,
                can_overflow=compute_dtype == 'float16' or compress,
            )
            self.averages = None
            if decay is not None:
                self.averages = averages.MovingAverages(
                    decay, {v.path: v for v in (self.weight, self.moving)}
                )

        def forward(weights, states, images, step, replica):
            products = tf.cast(images, compute_dtype) * tf.cast(
                weights[0], compute_dtype
            )
            mean = tf.reduce_mean(tf.cast(images, tf.float32))
            return [products], [mean]

        def loss_fn(outputs, labels):
            sums = tf.reduce_sum(tf.cast(outputs[0], tf.float32), axis=-1)
            return tf.reduce_mean(sums)

        self.step = train.make_train_step(
            replicas=replicas,
            compute=train.make_compute(
                forward,
                loss_fn,
                num_micro_batches=num_micro_batches,
                xla=xla,
            ),
            state=self.state,
            loss_scale=self.loss_scale,
            apply=train.make_apply(
                state=self.state,
                optimizer=self.optimizer,
                schedule=schedules.constant(rate),
                averages=self.averages,
                clip=gradients.make_clip(*clip),
            ),
            l2=losses.L2(weight_decay, [True]),
            compress_gradients=compress,
        )

    def run(self, *images):
        """One step on an array of images per replica; returns metrics."""
        tensors = [tf.constant(one, tf.float32) for one in images]
        batch = self.replicas.constant(
            lambda index: (tensors[index], tf.zeros([], tf.int32))
        )
        return self.step(batch).numpy()

    def copies(self, variable):
        """The values of a variable, one per copy of it."""
        # A Keras variable holds the distributed one.
        value = getattr(variable, '_value', variable)
        local = self.replicas.strategy.experimental_local_results(value)
        return [one.numpy() for one in local]


def build_tiny_model(batch_norm=True, dropout=0.25, num_classes=4):
    """8x8 images, one convolution, one hidden layer."""
    images = keras.Input(
        (8, 8, 3), dtype=keras.config.dtype_policy().compute_dtype
    )
    if batch_norm:
        x = layers.conv_bn(images, 4, 3, 2, name='conv', norm={})
    else:
        x = layers.conv(images, 4, 3, 2, bias=0.0, activation='relu', name='c')
    x = layers.flatten(x)
    x = layers.dense(x, 8, name='dense')
    if dropout:
        x = layers.dropout(x, dropout, name='drop')
    return keras.Model(images, layers.logits(x, num_classes))


class Tiny:
    """A training of a tiny model, by the public functions."""

    def __init__(
        self,
        replicas,
        model,
        numbers,
        *,
        compute=None,
        rate=0.05,
        optimizer='momentum',
        dynamic=False,
        decay=None,
        clip=(None, None),
        num_micro_batches=1,
        weight_decay=1e-4,
        xla=False,
        compress=False,
    ):
        self.replicas, self.model = replicas, model
        decayed = [losses.is_decayed(v.path) for v in model.trainable_weights]
        with replicas.strategy.scope():
            self.state = train.TrainState(
                model.trainable_weights,
                model.non_trainable_weights,
                tf.Variable(
                    0,
                    dtype=tf.int64,
                    trainable=False,
                    aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
                ),
            )
            self.optimizer = optimizers.create(
                optimizer,
                model.trainable_weights,
                optimizers.Settings(),
                decayed,
            )
            self.loss_scale = precision.LossScale(
                128.0,
                dynamic=dynamic,
                growth_steps=2,
                can_overflow=numbers.can_overflow or compress,
            )
            self.averages = None
            if decay is not None:
                self.averages = averages.MovingAverages(
                    decay, {v.path: v for v in model.weights}
                )
        self.compute = compute or train.make_compute(
            train.make_forward(model, seed=7, training=True),
            losses.make_classification_loss(
                label_smoothing=0.1, aux_loss_weight=0.4
            ),
            num_micro_batches=num_micro_batches,
            xla=xla,
        )
        self.step = train.make_train_step(
            replicas=replicas,
            compute=self.compute,
            state=self.state,
            loss_scale=self.loss_scale,
            apply=train.make_apply(
                state=self.state,
                optimizer=self.optimizer,
                schedule=schedules.constant(rate),
                averages=self.averages,
                clip=gradients.make_clip(*clip),
            ),
            l2=losses.L2(weight_decay, decayed),
            compress_gradients=compress,
        )


def tiny_batch(replicas, dtype, images_per_replica=8):
    """A fixed batch: the same images for any split over the replicas."""

    def make(index):
        count = images_per_replica
        whole = tf.random.stateless_uniform(
            [count * replicas.num_replicas, 8, 8, 3], [1, 2], -1.0, 1.0
        )
        labels = tf.range(count * replicas.num_replicas) % 4
        part = slice(index * count, (index + 1) * count)
        return tf.cast(whole[part], dtype), labels[part]

    return replicas.constant(make)


def loss_of(vector):
    """The loss in a vector of metrics."""
    return float(vector[metrics.LOSS])
