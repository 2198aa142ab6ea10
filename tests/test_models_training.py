"""Every model trains: two replicas, float32 and bfloat16.

The smallest network of each builder stands for the others, unless pytest is
asked for all with `-m ""`.
"""

import functools
import math
import time

import keras
import model_helpers
import numpy as np
import pytest
import tensorflow as tf

from kbench import models, strategies, train
from kbench.models import layers

_POLICIES = ('float32', 'mixed_bfloat16')


def _cases():
    """Every network in both precisions; `_299` rows are no others."""
    specs = [s for s in models.list_specs() if not s.name.endswith('_299')]
    smallest = {}
    for spec in sorted(specs, key=lambda s: s.parameters, reverse=True):
        smallest[_without_size(spec)[0]] = spec
    for spec in specs:
        for policy in _POLICIES:
            # Those that take more than ten seconds.
            marks = [pytest.mark.slow] if spec.name == 'nasnetlarge' else []
            if spec not in smallest.values():
                marks.append(pytest.mark.exhaustive)
            yield pytest.param(
                spec,
                policy,
                marks=marks,
                id=f'{model_helpers.spec_id(spec)}-{policy}',
            )


def _without_size(spec):
    """A row's builder with its options, and what they make."""
    builder = spec.builder
    if not isinstance(builder, functools.partial):
        return builder, (), {}, spec.parameters
    return builder.func, builder.args, builder.keywords, spec.parameters


def test_rows_at_299_pixels_are_the_networks_of_224():
    """So training the rows of 224, at another size, tests them as well."""
    rows = models.list_specs('*_299')
    assert len(rows) == 3
    for spec in rows:
        same = models.get_spec(spec.name.removesuffix('_299'))
        assert isinstance(spec.builder, functools.partial)
        assert _without_size(spec) == _without_size(same)
        assert (spec.image_size, same.image_size) == (299, 224)


@pytest.mark.parametrize(('spec', 'policy'), list(_cases()))
def test_two_steps_on_two_replicas(spec, policy):
    with models.keras_config(policy):
        model, losses, missing = model_helpers.train_on_two_replicas(spec)
    assert not missing
    assert len(losses) == 2
    assert np.isfinite(losses).all()
    for variable in model.weights:
        first, second = (part.numpy() for part in variable.value.values)
        assert np.isfinite(first).all(), variable.path
        if variable.trainable:
            np.testing.assert_array_equal(first, second, variable.path)


@pytest.mark.parametrize('policy', ['mixed_float16', 'float16'])
@pytest.mark.parametrize('name', ['resnet20', 'lenet'])
def test_float16_has_finite_gradients(name, policy):
    spec = models.get_spec(name, 'cifar10')
    with models.keras_config(policy):
        size = model_helpers.small_size(spec)
        model = models.create_model(spec, 10, size)
        images, labels = model_helpers.random_batch(spec, size, 2)
        total, grads, _ = model_helpers.gradients(model, spec, images, labels)
    assert math.isfinite(float(total))
    for variable, gradient in zip(
        model.trainable_variables, grads, strict=True
    ):
        assert gradient.dtype == variable.dtype
        assert np.isfinite(gradient.numpy()).all(), variable.path
        if 'bn/' in variable.path:
            assert variable.dtype == 'float32'
        elif policy == 'float16':
            assert variable.dtype == 'float16'


@pytest.mark.slow
def test_nasnetlarge_builds_and_traces_within_a_minute():
    spec = models.get_spec('nasnetlarge')
    start = time.monotonic()
    model = models.create_model(spec, 1000)

    @tf.function
    def step(images, labels):
        total, grads, _ = model_helpers.gradients(model, spec, images, labels)
        return total, grads

    graph = step.get_concrete_function(
        tf.TensorSpec((16, 331, 331, 3)), tf.TensorSpec((16,), tf.int32)
    )
    seconds = time.monotonic() - start
    assert len(graph.outputs) == 1 + len(model.trainable_variables)
    assert seconds < 60, seconds


def test_seed_generators_finds_every_random_layer():
    model = models.create_model(models.get_spec('nasnet', 'cifar10'), 10)
    found = models.seed_generators(model)
    drops = [layer for layer in model.layers if layer.name.endswith('_drop')]
    assert len(found) == len(drops) > 100
    states = [g.state for g in found]
    assert len({state.path for state in states}) == len(states)
    others = [
        v for v in model.variables if all(v is not w for w in model.weights)
    ]
    assert {id(v) for v in others} == {id(state) for state in states}


def test_dropout_follows_the_seed_it_is_given():
    """As the train loop does it: a state for each replica and step."""
    spec = models.get_spec('vgg11')
    model = models.create_model(spec, 10, 32)
    images, _ = model_helpers.random_batch(spec, 32, 2)

    def logits(seed, training=True):
        mapping = [
            (generator.state, tf.constant([seed, index], tf.uint32))
            for index, generator in enumerate(models.seed_generators(model))
        ]
        with keras.StatelessScope(mapping) as scope:
            outputs = model(images, training=training)[0]
        moved = [
            scope.get_current_value(generator.state)
            for generator in models.seed_generators(model)
        ]
        return outputs.numpy(), moved

    first, moved = logits(1)
    np.testing.assert_array_equal(first, logits(1)[0])
    assert np.abs(first - logits(2)[0]).max() > 1e-6
    np.testing.assert_array_equal(
        logits(1, training=False)[0], logits(2, training=False)[0]
    )
    assert [list(state.numpy()) for state in moved] == [[1, 1], [1, 2]]


def _on_two_replicas(model, seed, training=True):
    """A traced step that shows both replicas the same images.

    Returns a function of the step to the first output of each replica.
    """
    replicas = strategies.create(
        'replicated', devices=['/cpu:0', '/cpu:1'], parameter_device='/cpu:0'
    )
    forward = train.make_forward(model, seed=seed, training=training)
    images = tf.ones((2, *model.inputs[0].shape[1:]))

    def replica_step(step):
        outputs, _ = forward(
            [tf.convert_to_tensor(one) for one in model.trainable_weights],
            [tf.convert_to_tensor(one) for one in model.non_trainable_weights],
            *(images, step),
            tf.distribute.get_replica_context().replica_id_in_sync_group,
        )
        return outputs[0]

    @tf.function(autograph=False)
    def run(step):
        return replicas.strategy.experimental_local_results(
            replicas.run(replica_step, (step,))
        )

    return lambda step: [
        one.numpy() for one in run(tf.constant(step, tf.int64))
    ]


def test_masks_differ_between_replicas_and_follow_seed_and_step():
    images = keras.Input((8, 8, 3))
    x = layers.dropout(layers.flatten(images), 0.5, name='drop')
    model = keras.Model(images, x)
    run = _on_two_replicas(model, seed=3)
    masks = {
        (3, step, replica): mask
        for step in (0, 1)
        for replica, mask in enumerate(run(step))
    }
    for replica, mask in enumerate(_on_two_replicas(model, seed=4)(0)):
        masks[4, 0, replica] = mask
    different = {mask.tobytes() for mask in masks.values()}
    assert len(different) == len(masks) == 6
    for mask in masks.values():
        assert set(mask.ravel()) == {0.0, 2.0}
        # 384 fair coins: more than six standard deviations.
        assert 130 < np.count_nonzero(mask) < 254
        assert (mask[0] != mask[1]).any()
    again = _on_two_replicas(model, seed=3)
    for step in (1, 0):
        for replica, mask in enumerate(again(step)):
            np.testing.assert_array_equal(mask, masks[3, step, replica])


def test_replicas_of_a_model_of_the_table_drop_differently():
    model = models.create_model(models.get_spec('vgg11'), 10, 32)
    first, second = _on_two_replicas(model, seed=1)(0)
    assert np.abs(first - second).max() > 1e-6
    first, second = _on_two_replicas(model, seed=1, training=False)(0)
    np.testing.assert_array_equal(first, second)
