"""Number formats, and the loss scale step by step."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from numerics_helpers import MODES, Linear, create_replicas, loss_of

import kbench
from kbench import checkpoints, loop, metrics, models, precision
from kbench import params as params_lib
from kbench.models import layers

START = np.array([1.0, -2.0], np.float32)
FINE = [[0.5, 0.25]]
# 128 times as much is not finite in float16; the loss itself is.
LARGE = [[1000.0, 0.0]]


@pytest.mark.parametrize(
    'compute, variable, policy, can_overflow',
    (
        ('float32', 'float32', 'float32', False),
        ('bfloat16', 'float32', 'mixed_bfloat16', False),
        ('float16', 'float32', 'mixed_float16', True),
        ('float16', 'float16', 'float16', True),
    ),
)
def test_policy(compute, variable, policy, can_overflow):
    numbers = precision.Precision(compute, variable)
    assert (numbers.policy, numbers.can_overflow) == (policy, can_overflow)


def run_scale(initial, growth_steps, finite):
    """The scale and the counts after each step."""
    scale = precision.LossScale(
        initial, dynamic=True, growth_steps=growth_steps, can_overflow=True
    )
    update = tf.function(scale.update, autograph=False)
    found = []
    for value in finite:
        update(tf.constant(value))
        found.append(
            (
                float(scale.value()),
                int(scale.variables['good_steps'].numpy()),
                scale.skipped_steps(),
            )
        )
    return found


@pytest.mark.parametrize(
    'initial, growth_steps, table',
    (
        # finite?, then scale, good steps in a row, skipped steps
        (
            128,
            3,
            (
                (True, 128, 1, 0),
                (True, 128, 2, 0),
                (True, 256, 0, 0),
                (True, 256, 1, 0),
                (False, 128, 0, 1),
                (False, 64, 0, 2),
                (True, 64, 1, 2),
                (True, 64, 2, 2),
                (False, 32, 0, 3),
                (True, 32, 1, 3),
                (True, 32, 2, 3),
                (True, 64, 0, 3),
            ),
        ),
        # The floor: never below 1.
        (4, 2, ((False, 2, 0, 1), (False, 1, 0, 2), (False, 1, 0, 3))),
        (1.5, 2, ((False, 1, 0, 1),)),
        # The ceiling: never above 2^24.
        (
            2**23,
            1,
            (
                (True, 2**24, 0, 0),
                (True, 2**24, 0, 0),
                (False, 2**23, 0, 1),
            ),
        ),
    ),
)
def test_dynamic_scale(initial, growth_steps, table):
    found = run_scale(initial, growth_steps, [row[0] for row in table])
    assert found == [row[1:] for row in table]


def test_a_scale_that_cannot_overflow_has_no_state():
    scale = precision.LossScale(128.0)
    assert scale.value() is None
    assert scale.variables == {}
    assert scale.skipped_steps() == 0


def linear(mode, devices, **options):
    return Linear(
        create_replicas(mode, devices),
        START,
        rate=0.1,
        optimizer='momentum',
        compute_dtype='float16',
        scale=128.0,
        decay=0.5,
        **options,
    )


def everything(training):
    """All copies of all that a training moves, except the loss scale."""
    variables = {
        'weight': training.weight,
        'moving': training.moving,
        'step': training.state.step,
        **training.optimizer.slots,
        **training.averages.variables,
    }
    return {name: training.copies(v) for name, v in variables.items()}


def assert_same(left, right):
    assert left.keys() == right.keys()
    for name, copies in left.items():
        for one, other in zip(copies, right[name], strict=True):
            np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.mark.parametrize('xla', (False, True))
@pytest.mark.parametrize('dynamic', (False, True))
@pytest.mark.parametrize('mode', ('parameter_server', 'replicated'))
def test_an_overflow_on_the_second_replica_skips_on_both(
    mode, dynamic, xla, devices
):
    training = linear(mode, devices(2), dynamic=dynamic, xla=xla)
    first = training.run(FINE, FINE)
    assert first[metrics.FINITE] == 1
    before = everything(training)
    assert before['step'][0] == 1
    assert before['weight'][0][0] != START[0]

    vector = training.run(FINE, LARGE)
    assert vector[metrics.FINITE] == 0
    assert np.isfinite(loss_of(vector))
    assert vector[metrics.LOSS_SCALE] == 128
    assert_same(before, everything(training))
    scale = training.loss_scale.variables
    expected = 64 if dynamic else 128
    assert {float(c) for c in training.copies(scale['loss_scale'])} == {
        expected
    }
    assert {float(c) for c in training.copies(scale['skipped_steps'])} == {1}

    # And it goes on as if nothing had been.
    after = training.run(FINE, FINE)
    assert after[metrics.FINITE] == 1
    assert after[metrics.LOSS_SCALE] == expected
    other = linear(mode, devices(2), dynamic=dynamic, xla=xla)
    other.run(FINE, FINE)
    other.run(FINE, FINE)
    assert_same(everything(other), everything(training))


def test_an_independent_replica_skips_alone(devices):
    training = linear('independent', devices(2), dynamic=True)
    training.run(FINE, LARGE)
    moved, kept = training.copies(training.weight)
    assert moved[0] != START[0]
    np.testing.assert_array_equal(kept, START)
    scale = training.loss_scale.variables
    assert training.copies(scale['loss_scale']) == [128, 64]
    assert training.copies(scale['skipped_steps']) == [0, 1]


def test_infinities_of_opposite_sign_are_seen(devices):
    """Their mean is NaN, not infinity."""
    training = linear('replicated', devices(2))
    vector = training.run(LARGE, [[-1000.0, 0.0]])
    assert vector[metrics.FINITE] == 0
    np.testing.assert_array_equal(training.weight.numpy(), START)


@pytest.mark.parametrize('mode', MODES)
def test_a_scale_finds_its_height(mode, devices):
    """From 2^15 down to where 30 x scale fits float16, and up again."""
    training = Linear(
        create_replicas(mode, devices(2)),
        START,
        rate=1e-3,
        scale=2.0**15,
        compute_dtype='float16',
        dynamic=True,
        growth_steps=3,
    )
    scales = [
        training.run([[30.0, 0.0]], [[30.0, 0.0]])[metrics.LOSS_SCALE]
        for _ in range(10)
    ]
    # 30 x 2048 = 61,440 is below 65,504.
    powers = [15, 14, 13, 12, 11, 11, 11, 12, 11, 11]
    assert scales == [2.0**power for power in powers]
    assert training.loss_scale.skipped_steps() == 5
    assert int(training.state.step.numpy()) == 5


def vector(loss=1.0, finite=1.0, scale=1.0):
    return np.array([loss, np.nan, np.nan, finite, scale, np.nan], np.float32)


def make_watch(dynamic=True, stop_on_nan=False):
    told = []
    watch = loop.Watch(
        dynamic=dynamic, stop_on_nan=stop_on_nan, warn=told.append
    )
    return watch, told


@pytest.mark.parametrize('dynamic, scale', ((True, 1.0), (False, 128.0)))
def test_50_overflows_at_the_floor_end_the_run(dynamic, scale):
    watch, _ = make_watch(dynamic)
    # A good step in between starts the count anew.
    for step in range(1, 50):
        watch.see(step, vector(finite=0, scale=scale))
    watch.see(50, vector(scale=scale))
    for step in range(51, 100):
        watch.see(step, vector(finite=0, scale=scale))
    with pytest.raises(loop.TrainingError) as caught:
        watch.see(100, vector(finite=0, scale=scale))
    text = str(caught.value)
    assert '50 steps in a row overflowed up to step 100' in text
    assert f'the loss scale, {scale:g},' in text
    assert '\n' not in text
    assert watch.skipped_steps == 99


def test_overflows_above_the_floor_go_on():
    watch, _ = make_watch(dynamic=True)
    for step in range(1, 200):
        watch.see(step, vector(finite=0, scale=2.0))
    assert watch.skipped_steps == 199


def test_a_loss_that_is_not_finite_is_told_once():
    watch, told = make_watch()
    for step, loss in enumerate((1.0, 2.0, np.nan, np.inf, 1.0), 1):
        watch.see(step, vector(loss))
    assert told == ['the loss is nan at step 3']
    assert watch.first_bad_step == 3


@pytest.mark.parametrize('loss', (np.nan, np.inf, -np.inf))
def test_stop_on_nan_raises(loss):
    watch, told = make_watch(stop_on_nan=True)
    watch.see(6, vector(1.0))
    with pytest.raises(loop.TrainingError, match='at step 7'):
        watch.see(7, vector(loss))
    assert told == []


@pytest.mark.parametrize('policy', ('mixed_float16', 'float16'))
def test_what_stays_float32_in_float16(policy):
    with models.keras_config(policy):
        model = models.create_model(models.get_spec('resnet20'), 10)
    kinds = {}
    for weight in model.weights:
        kinds.setdefault(weight.path.rpartition('/')[2], set()).add(
            weight.dtype
        )
    for name in ('gamma', 'beta', 'moving_mean', 'moving_variance'):
        assert kinds[name] == {'float32'}, name
    stored = 'float16' if policy == 'float16' else 'float32'
    assert kinds['kernel'] == {stored}
    images = tf.zeros([2, 32, 32, 3], tf.float16)
    assert model(images, training=False)[0].dtype == tf.float32


@pytest.mark.parametrize('dtype', ('float16', 'bfloat16', 'float32'))
@pytest.mark.parametrize('value', (1.0, 2000.0))
def test_the_global_mean_sums_in_float32(dtype, value):
    """4,096 x 2,000 overflows float16; bfloat16 counts by ones to 256."""
    images = keras.Input((64, 64, 2), dtype=dtype)
    with models.keras_config(dtype):
        model = keras.Model(images, layers.global_mean(images))
    found = model(tf.fill([1, 64, 64, 2], tf.constant(value, dtype)))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found.numpy().astype(float), [[value] * 2])


@pytest.mark.parametrize(
    'values, text',
    (
        (dict(fp16_vars=True), '--fp16_vars=True needs --use_fp16'),
        (dict(fp16_loss_scale=8.0), '--fp16_loss_scale=8.0 needs --use_fp16'),
        (
            dict(fp16_enable_auto_loss_scale=True, compute_dtype='bfloat16'),
            '--fp16_enable_auto_loss_scale=True needs --use_fp16',
        ),
        (
            dict(use_fp16=True, compute_dtype='bfloat16'),
            '--use_fp16 contradicts --compute_dtype=bfloat16',
        ),
        (
            dict(use_fp16=True, fp16_vars=True, optimizer='adam'),
            '--fp16_vars does not work with --optimizer=adam',
        ),
        (dict(use_fp16=True, fp16_loss_scale=0.5), '--fp16_loss_scale=0.5'),
    ),
)
def test_what_cannot_be_is_refused(values, text):
    with pytest.raises(params_lib.ParamsError) as caught:
        params_lib.make_params(**values)
    assert text in str(caught.value)


TRAIN = dict(
    model='trivial',
    data_name='digits',
    device='cpu',
    batch_size=16,
    num_warmup_batches=0,
    num_batches=4,
    learning_rate=0.01,
    optimizer='momentum',
)
DYNAMIC = dict(use_fp16=True, fp16_enable_auto_loss_scale=True)


def test_the_scale_and_the_count_are_saved_and_restored(tmp_path, capsys):
    values = TRAIN | DYNAMIC | dict(train_dir=str(tmp_path))
    # 2^24 overflows at first: each step halves it.
    first = kbench.run(**values, fp16_loss_scale=2.0**24)
    assert first.skipped_steps == 4
    assert first.step == 0
    assert '4 steps overflowed and were skipped' in capsys.readouterr().err
    saved = checkpoints.load(first.checkpoint)
    assert saved['loss_scale'] == 2.0**20
    assert saved['skipped_steps'] == 4
    assert saved['good_steps'] == 0
    assert saved['batches_seen'] == 4

    second = kbench.run(**values)
    restored = checkpoints.load(second.checkpoint)
    fresh = restored['skipped_steps'] - 4
    assert second.skipped_steps == 4 + fresh
    assert restored['loss_scale'] == 2.0 ** (20 - fresh)
    assert restored['good_steps'] == second.step == 4 - fresh


def test_a_hopeless_scale_ends_the_program(tmp_path):
    with pytest.raises(kbench.UserError) as caught:
        kbench.run(
            **TRAIN | dict(num_batches=60, train_dir=str(tmp_path)),
            use_fp16=True,
            fp16_loss_scale=1e30,
        )
    assert '50 steps in a row overflowed up to step 50' in str(caught.value)
    assert checkpoints.latest(str(tmp_path)) is None


def test_a_run_may_go_on_in_another_precision(tmp_path):
    values = TRAIN | dict(train_dir=str(tmp_path))
    kbench.run(**values, **DYNAMIC)
    plain = kbench.run(**values)
    assert plain.step == 8
    assert plain.loss_scale == 1
    again = kbench.run(**values, use_fp16=True, fp16_vars=True)
    assert again.step == 12
    assert np.isfinite(again.losses).all()
