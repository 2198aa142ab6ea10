"""Every way of computing a step, crossed with every other.

float32, bfloat16, float16 with a fixed and with a dynamic scale; one and two
replicas; XLA off and on; averages off and on; clip off and on; the three
modes. Every cell runs three steps of a model with batch norm and dropout.
Gradients are computed by the same function in the cells that differ only in
what follows them: that function is built once.
"""

import contextlib
import functools
import itertools

import keras
import numpy as np
import pytest
from numerics_helpers import (
    MODES,
    Tiny,
    build_tiny_model,
    create_replicas,
    loss_of,
    tiny_batch,
)

from kbench import metrics, models, precision

NUMBERS = {
    'float32': ('float32', False),
    'bfloat16': ('bfloat16', False),
    'float16': ('float16', False),
    'float16_dynamic': ('float16', True),
}
CLIPS = {'no_clip': (None, None), 'norm': (None, 0.1)}
AVERAGES = {'raw': None, 'averages': 0.9}
IMAGES = 8


@contextlib.contextmanager
def share_policy(policy):
    """Keras layers of a policy, their weights always the same."""
    with models.keras_config(policy):
        keras.utils.set_random_seed(5)
        yield


@functools.cache
def share(mode, num_replicas, dtype, xla):
    """What the cells have in common that differ after the gradients."""
    replicas = create_replicas(
        mode, [f'/cpu:{index}' for index in range(num_replicas)]
    )
    numbers = precision.Precision(dtype)
    with share_policy(numbers.policy), replicas.strategy.scope():
        model = build_tiny_model()
    start = [weight.numpy() for weight in model.weights]
    batch = tiny_batch(replicas, dtype, IMAGES // num_replicas)
    return replicas, numbers, model, start, batch, []


@functools.cache
def run_cell(mode, num_replicas, name, xla, averages, clip):
    """Three steps; returns metrics, weights and the training."""
    dtype, dynamic = NUMBERS[name]
    replicas, numbers, model, start, batch, built = share(
        mode, num_replicas, dtype, xla
    )
    for weight, value in zip(model.weights, start, strict=True):
        weight.assign(value)
    training = Tiny(
        replicas,
        model,
        numbers,
        compute=built[0] if built else None,
        rate=0.1,
        dynamic=dynamic,
        decay=AVERAGES[averages],
        clip=CLIPS[clip],
        xla=xla,
    )
    built[:] = [training.compute]
    vectors = np.stack([training.step(batch).numpy() for _ in range(3)])
    weights = [weight.numpy() for weight in model.weights]
    averaged = (
        [v.numpy() for v in training.averages.variables.values()]
        if training.averages
        else []
    )
    return vectors, weights, averaged, int(training.state.step.numpy())


CELLS = tuple(
    itertools.product(MODES, (1, 2), NUMBERS, (False, True), AVERAGES, CLIPS)
)


def test_the_matrix_is_whole():
    assert len(CELLS) == 3 * 2 * 4 * 2 * 2 * 2


@pytest.mark.parametrize(
    'mode, num_replicas, name, xla, averages, clip',
    CELLS,
    ids=['-'.join(map(str, cell)) for cell in CELLS],
)
def test_cell(mode, num_replicas, name, xla, averages, clip):
    vectors, weights, averaged, step = run_cell(
        mode, num_replicas, name, xla, averages, clip
    )
    losses = vectors[:, metrics.LOSS]
    assert np.isfinite(losses).all()
    assert all(np.isfinite(weight).all() for weight in weights)
    assert step == 3
    assert vectors[:, metrics.FINITE].tolist() == [1, 1, 1]
    scales = {
        'float16': [128, 128, 128],
        # It doubles after two good steps.
        'float16_dynamic': [128, 128, 256],
    }
    expected = scales.get(name, [1, 1, 1])
    assert vectors[:, metrics.LOSS_SCALE].tolist() == expected
    norms = vectors[:, metrics.GRADIENT_NORM]
    assert np.isfinite(norms).all() == (clip == 'norm')

    # Averages change nothing but themselves.
    if averages == 'averages':
        raw = run_cell(mode, num_replicas, name, xla, 'raw', clip)
        np.testing.assert_array_equal(losses, raw[0][:, metrics.LOSS])
        assert len(averaged) == len(weights)
        assert all(np.isfinite(value).all() for value in averaged)
    if clip != 'no_clip':
        return
    assert losses[2] < losses[0]
    # Where replicas share gradients, or there is one, the mode is no number.
    if num_replicas == 1 or mode != 'independent':
        other = run_cell('replicated', num_replicas, name, xla, 'raw', clip)
        np.testing.assert_array_equal(losses, other[0][:, metrics.LOSS])


@functools.cache
def run_without_dropout(dtype, xla):
    """Losses of three steps: dropout draws other masks in other formats."""
    replicas = create_replicas('replicated', ['/cpu:0', '/cpu:1'])
    numbers = precision.Precision(dtype)
    with share_policy(numbers.policy), replicas.strategy.scope():
        model = build_tiny_model(dropout=0)
    training = Tiny(replicas, model, numbers, rate=0.1, xla=xla)
    batch = tiny_batch(replicas, dtype, IMAGES // 2)
    return [loss_of(training.step(batch)) for _ in range(3)]


@pytest.mark.parametrize('xla', (False, True))
@pytest.mark.parametrize(
    'dtype, tolerance',
    (('float32', 2e-6), ('bfloat16', 0.02), ('float16', 0.002)),
)
def test_formats_agree(dtype, tolerance, xla):
    np.testing.assert_allclose(
        run_without_dropout(dtype, xla),
        run_without_dropout('float32', False),
        rtol=tolerance,
    )
