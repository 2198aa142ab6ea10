"""Mean, clip, norm, accumulation and the way between devices."""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from numerics_helpers import (
    MODES,
    Linear,
    Tiny,
    build_tiny_model,
    create_replicas,
    loss_of,
    tiny_batch,
)

from kbench import gradients, metrics, precision, strategies
from kbench import params as params_lib

START = np.array([1.0, -2.0], np.float32)


@pytest.mark.parametrize(
    'by_value, by_norm, expected, norm',
    (
        (None, None, [3.0, -4.0, 0.0], None),
        (2.0, None, [2.0, -2.0, 0.0], None),
        (5.0, None, [3.0, -4.0, 0.0], None),
        (None, 2.5, [1.5, -2.0, 0.0], 5.0),
        (None, 5.0, [3.0, -4.0, 0.0], 5.0),
        (None, 10.0, [3.0, -4.0, 0.0], 5.0),
    ),
)
def test_clip(by_value, by_norm, expected, norm):
    clip = gradients.make_clip(by_value, by_norm)
    clipped, found = clip([tf.constant([3.0, -4.0]), tf.constant([0.0])])
    np.testing.assert_allclose(tf.concat(clipped, 0), expected, rtol=1e-6)
    assert (found is None) == (norm is None)
    if norm is not None:
        assert float(found) == pytest.approx(norm, rel=1e-6)


@pytest.mark.parametrize('by_norm', (1e-3, 1.0))
def test_clip_of_no_gradient_is_no_nan(by_norm):
    clipped, norm = gradients.make_clip(None, by_norm)([tf.zeros([3])])
    assert clipped[0].numpy().tolist() == [0, 0, 0]
    assert float(norm) == 0


@pytest.mark.parametrize(
    'values, finite',
    (
        ([[1.0, 3e38], [0.0]], True),
        ([[1.0, math.inf], [0.0]], False),
        ([[1.0, 0.0], [-math.inf]], False),
        ([[1.0, 0.0], [math.nan]], False),
    ),
)
def test_all_finite(values, finite):
    found = gradients.all_finite([tf.constant(value) for value in values])
    assert bool(found) is finite


def test_unscale_is_float32():
    scaled = [tf.constant([64.0], tf.float16), tf.constant([1.0], tf.bfloat16)]
    found = gradients.unscale(scaled, tf.constant(2.0**20))
    assert [g.dtype for g in found] == [tf.float32] * 2
    # The first would be a subnormal float16.
    assert [float(g[0]) for g in found] == [2.0**-14, 2.0**-20]


# Clip, and the weight change that opposite and equal gradients give.
CLIPS = {'none': (None, None), 'value': (0.5, None), 'norm': (None, 0.5)}


@pytest.mark.parametrize('clip', CLIPS)
@pytest.mark.parametrize('mode', ('parameter_server', 'replicated'))
def test_opposite_gradients_meet_before_the_clip(mode, clip, devices):
    """Clipped first, 100 and -98 would give 0 instead of 1 clipped."""
    training = Linear(
        create_replicas(mode, devices(2)), START, clip=CLIPS[clip]
    )
    vector = training.run([[100.0, 7.0]], [[-98.0, -7.0]])
    step = 1.0 if clip == 'none' else 0.5
    for copy in training.copies(training.weight):
        np.testing.assert_allclose(copy, START - [step, 0.0], rtol=1e-6)
    if clip == 'norm':
        norm = vector[metrics.GRADIENT_NORM]
        assert norm == pytest.approx(1.0, rel=1e-6)
    else:
        assert np.isnan(vector[metrics.GRADIENT_NORM])


@pytest.mark.parametrize('clip', CLIPS)
def test_independent_replicas_clip_their_own(clip, devices):
    training = Linear(
        create_replicas('independent', devices(2)), START, clip=CLIPS[clip]
    )
    training.run([[100.0, 0.0]], [[-98.0, 0.0]])
    steps = (100.0, -98.0) if clip == 'none' else (0.5, -0.5)
    for copy, step in zip(training.copies(training.weight), steps, strict=True):
        np.testing.assert_allclose(copy, START - [step, 0.0], rtol=1e-6)


@pytest.mark.parametrize('scale', (1.0, 128.0, 4096.0))
@pytest.mark.parametrize('compute_dtype', ('float32', 'float16'))
def test_the_reported_norm_is_unscaled_and_before_the_clip(
    compute_dtype, scale, devices
):
    training = Linear(
        create_replicas('replicated', devices(2)),
        START,
        scale=scale,
        compute_dtype=compute_dtype,
        clip=(None, 1.0),
    )
    vector = training.run([[3.0, 0.0]], [[3.0, 8.0]])
    assert vector[metrics.GRADIENT_NORM] == pytest.approx(5.0, rel=1e-3)
    expected_scale = scale if compute_dtype == 'float16' else 1.0
    assert vector[metrics.LOSS_SCALE] == expected_scale
    np.testing.assert_allclose(
        training.weight.numpy(), START - [0.6, 0.8], rtol=1e-3
    )


@pytest.mark.parametrize('count', (2, 4))
@pytest.mark.parametrize('num_replicas', (1, 2))
@pytest.mark.parametrize('mode', ('parameter_server', 'replicated'))
def test_micro_batches_equal_one_large_batch(
    mode, num_replicas, count, devices
):
    found = {}
    for micro in (1, count):
        replicas = create_replicas(mode, devices(num_replicas))
        keras.utils.set_random_seed(3)
        with replicas.strategy.scope():
            model = build_tiny_model(batch_norm=False, dropout=0)
        training = Tiny(
            replicas,
            model,
            precision.Precision(),
            num_micro_batches=micro,
            weight_decay=0.01,
        )
        batch = tiny_batch(replicas, 'float32', 16 // num_replicas)
        losses = [loss_of(training.step(batch)) for _ in range(3)]
        found[micro] = losses, [v.numpy() for v in model.weights]
    np.testing.assert_allclose(found[1][0], found[count][0], rtol=1e-5)
    for large, small in zip(found[1][1], found[count][1], strict=True):
        np.testing.assert_allclose(large, small, rtol=1e-5, atol=1e-6)


def test_micro_batches_move_the_statistics_in_turn(devices):
    """n micro-batches move batch-norm statistics n times."""
    means = []
    for micro in (1, 2):
        replicas = create_replicas('replicated', devices(1))
        keras.utils.set_random_seed(3)
        with replicas.strategy.scope():
            model = build_tiny_model()
        before = model.non_trainable_weights[0].numpy()
        training = Tiny(
            replicas, model, precision.Precision(), num_micro_batches=micro
        )
        training.step(tiny_batch(replicas, 'float32'))
        means.append(model.non_trainable_weights[0].numpy() - before)
    # After k moves by 0.1 towards about the same mean: 1 - 0.9^k of it.
    ratio = np.linalg.norm(means[1]) / np.linalg.norm(means[0])
    assert ratio == pytest.approx(1.9, rel=0.02)


def dtypes_that_travel(training, images, monkeypatch):
    """Types of the tensors that a traced step reduces."""
    seen = set()
    if isinstance(training.replicas, strategies.SharedReplicas):
        extended = training.replicas.strategy.extended
        real = extended.batch_reduce_to

        results = training.replicas.strategy.experimental_local_results

        def spy(op, pairs, *args):
            seen.update(
                (one.dtype, one.shape.rank)
                for value, _ in pairs
                for one in results(value)
            )
            return real(op, pairs, *args)

        monkeypatch.setattr(extended, 'batch_reduce_to', spy)
    else:
        real = tf.distribute.ReplicaContext.all_reduce

        def spy(self, op, value, options=None):
            seen.update((one.dtype, one.shape.rank) for one in value)
            return real(self, op, value, options)

        monkeypatch.setattr(tf.distribute.ReplicaContext, 'all_reduce', spy)
    training.run(*images)
    return seen


@pytest.mark.parametrize('compute_dtype', ('float32', 'bfloat16', 'float16'))
@pytest.mark.parametrize('compress', (False, True))
@pytest.mark.parametrize('mode', ('parameter_server', 'replicated'))
def test_gradients_travel_in_float16_when_asked(
    mode, compress, compute_dtype, devices, monkeypatch
):
    training = Linear(
        create_replicas(mode, devices(2)),
        START,
        scale=128.0,
        compute_dtype=compute_dtype,
        compress=compress,
    )
    # 2^-24 is the smallest float16: without the scale it would be rounded.
    images = [[[0.1, 1.5 * 2.0**-24]], [[0.3, 1.5 * 2.0**-24]]]
    seen = dtypes_that_travel(training, images, monkeypatch)
    gradient = (tf.float16 if compress else tf.float32, 1)
    # The loss, a scalar, stays float32.
    assert seen == {gradient, (tf.float32, 0)}
    change = (START - training.weight.numpy())[0]
    assert change == pytest.approx(
        0.2, rel=1e-2 if compute_dtype != 'float32' else 1e-3
    )


@pytest.mark.parametrize('mode', ('parameter_server', 'replicated'))
def test_small_gradients_survive_the_way(mode, devices):
    training = Linear(
        create_replicas(mode, devices(2)),
        np.zeros(1, np.float32),
        rate=2.0**20,
        scale=128.0,
        compress=True,
    )
    training.run([[1.5 * 2.0**-25]], [[1.5 * 2.0**-25]])
    np.testing.assert_allclose(training.weight.numpy(), [-1.5 * 2.0**-5])


def test_an_overflow_on_the_way_skips_the_step(devices):
    """Finite in float32, 1,000 x 128 is not finite in float16."""
    training = Linear(
        create_replicas('replicated', devices(2)),
        START,
        scale=128.0,
        compress=True,
    )
    vector = training.run([[1000.0, 0.0]], [[1.0, 0.0]])
    assert vector[metrics.FINITE] == 0
    np.testing.assert_array_equal(training.weight.numpy(), START)


@pytest.mark.parametrize('mode', MODES)
def test_one_replica_or_independent_ones_cast_nothing(mode, devices):
    count = 2 if mode == 'independent' else 1
    training = Linear(
        create_replicas(mode, devices(count)), START, compress=True
    )
    odd = np.float32(0.1)
    training.run(*[[[odd, 0.0]]] * count)
    # float16 has no 0.1 to this many digits.
    assert START[0] - training.weight.numpy()[0] == START[0] - (START[0] - odd)


@pytest.mark.parametrize(
    'reduction',
    (
        tf.distribute.HierarchicalCopyAllReduce,
        tf.distribute.ReductionToOneDevice,
    ),
)
def test_reductions_that_pack_take_both_types(reduction, devices):
    """HierarchicalCopyAllReduce and NCCL concatenate what they reduce."""
    names = devices(2)
    replicas = strategies.Replicas(
        tf.distribute.MirroredStrategy(names, reduction()), names
    )
    training = Linear(replicas, START, scale=128.0, compress=True)
    vector = training.run([[1.0, 0.0]], [[3.0, 0.0]])
    assert loss_of(vector) == pytest.approx(2.0)
    for copy in training.copies(training.weight):
        np.testing.assert_allclose(copy, START - [2.0, 0.0])


@pytest.mark.parametrize(
    'values, text',
    (
        (
            dict(gradient_clip=1.0, gradient_clip_norm=1.0),
            '--gradient_clip and --gradient_clip_norm exclude each other',
        ),
        (dict(gradient_clip=0.0), '--gradient_clip=0.0 is not legal'),
        (
            dict(fp16_compress_gradients=True, variable_update='independent'),
            'no gradient travels',
        ),
        (dict(num_grad_accumulation=0), '--num_grad_accumulation=0'),
    ),
)
def test_what_cannot_be_is_refused(values, text):
    with pytest.raises(params_lib.ParamsError) as caught:
        params_lib.make_params(**values)
    assert text in str(caught.value)
