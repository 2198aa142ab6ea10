"""Moving averages to the digit, in training, checkpoints and evaluation."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from numerics_helpers import MODES, Linear, create_replicas

import kbench
from kbench import averages, checkpoints

START = np.array([1.0, -2.0], np.float32)


@pytest.mark.parametrize(
    'decay, step, expected',
    (
        (0.999, 0, 1 / 10),
        (0.999, 1, 2 / 11),
        (0.999, 10, 11 / 20),
        (0.999, 8_990, 8_991 / 9_000),
        (0.999, 9_000, 0.999),
        (0.5, 8, 0.5),
        (0.5, 7, 8 / 17),
        (0.0, 100, 0.0),
        (1.0, 90, 0.91),
    ),
)
def test_decay(decay, step, expected):
    found = averages.decay_at(decay, tf.constant(step, tf.int64))
    assert float(found) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize('num_replicas', (1, 2))
@pytest.mark.parametrize('mode', MODES)
def test_five_steps_as_numpy(mode, num_replicas, devices):
    """Of the weight after the update, and of the batch-norm statistic."""
    training = Linear(
        create_replicas(mode, devices(num_replicas)),
        START,
        rate=0.5,
        decay=0.3,
    )
    weight, average = START.astype(np.float64), START.astype(np.float64)
    moving_average = 0.0
    for step in range(5):
        images = np.array([[0.5, -1.5]]) * (step + 1)
        training.run(*[images] * num_replicas)
        weight = weight - 0.5 * images[0]
        decay = min(0.3, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * weight
        moving_average = decay * moving_average + (1 - decay) * images.mean()
        found = list(training.averages.variables.values())
        for copy in training.copies(found[0]):
            np.testing.assert_allclose(copy, average, rtol=1e-6)
        for copy in training.copies(found[1]):
            np.testing.assert_allclose(copy, moving_average, rtol=1e-6)


def test_as_tensorflow_1():
    """tf.train.ExponentialMovingAverage with num_updates, to the digit."""
    v1 = tf.compat.v1
    values = [np.float32(np.cos(step)) for step in range(6)]
    weight = keras.Variable(values[0])
    ours = averages.MovingAverages(0.4, {'w': weight})
    found = []
    for step, value in enumerate(values):
        weight.assign(value)
        ours.update(tf.constant(step, tf.int64))
        found.append(ours.variables[averages.average_name('w')].numpy())
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable('w', initializer=values[0])
        step = v1.placeholder(tf.float32)
        theirs = tf.train.ExponentialMovingAverage(0.4, num_updates=step)
        update = theirs.apply([variable])
        average = theirs.average(variable)
        session.run(v1.global_variables_initializer())
        for index, value in enumerate(values):
            session.run(variable.assign(value))
            session.run(update, {step: index})
            assert session.run(average) == pytest.approx(found[index], rel=1e-6)


TRAIN = dict(
    model='resnet20',
    data_name='digits',
    device='cpu',
    batch_size=8,
    num_warmup_batches=0,
    num_batches=2,
    learning_rate=0.05,
    optimizer='momentum',
)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A folder with a checkpoint that holds averages."""
    folder = str(tmp_path_factory.mktemp('averages'))
    kbench.run(**TRAIN, train_dir=folder, moving_average_decay=0.9)
    return folder


def average_names(values):
    return {name for name in values if name.endswith('MovingAverage')}


def test_the_checkpoint_holds_averages_beside_the_weights(trained):
    values = checkpoints.load(checkpoints.latest(trained))
    names = average_names(values)
    for name in names:
        raw = name.removesuffix('/ExponentialMovingAverage')
        assert values[raw].shape == values[name].shape
    raw = {name.removesuffix('/ExponentialMovingAverage') for name in names}
    # Batch-norm statistics included; not the slots, not the step.
    assert {path.rpartition('/')[2] for path in raw} == {
        'kernel',
        'gamma',
        'beta',
        'bias',
        'moving_mean',
        'moving_variance',
    }
    differs = [path for path in raw if 'kernel' in path]
    assert differs
    for path in differs:
        average = values[averages.average_name(path)]
        assert not np.array_equal(values[path], average)


def test_evaluation_uses_the_averages_and_says_so(trained, capsys):
    run = dict(eval=True, train_dir=trained, device='cpu')
    averaged = kbench.run(**run)
    assert 'evaluating the moving averages of' in capsys.readouterr().err
    raw = kbench.run(**run, moving_average_decay=None)
    assert 'evaluating the weights of' in capsys.readouterr().err
    assert averaged.evaluation.loss != raw.evaluation.loss

    # The averages in the place of the weights give the same figures.
    path = checkpoints.latest(trained)
    values = checkpoints.load(path)
    swapped = {
        name: values.get(averages.average_name(name), value)
        for name, value in values.items()
    }
    folder = f'{trained}/swapped'
    tf.io.gfile.makedirs(folder)
    checkpoints.save(folder, 2, swapped, keep=1)
    same = kbench.run(
        **TRAIN | dict(eval=True, train_dir=folder, num_batches=100)
    )
    assert same.evaluation.loss == averaged.evaluation.loss
    assert same.evaluation.top_1 == averaged.evaluation.top_1


def test_training_goes_on_with_the_raw_weights(trained, tmp_path):
    """Resumed and uninterrupted give the same weights and averages."""
    values = dict(TRAIN, train_dir=str(tmp_path), moving_average_decay=0.9)
    whole = kbench.run(**values | dict(num_batches=4))
    folder = str(tmp_path / 'resumed')
    tf.io.gfile.makedirs(folder)
    checkpoints.save(
        folder, 2, checkpoints.load(checkpoints.latest(trained)), keep=1
    )
    resumed = kbench.run(**values | dict(train_dir=folder))
    assert resumed.losses == whole.losses[2:]
    one = checkpoints.load(whole.checkpoint)
    other = checkpoints.load(resumed.checkpoint)
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.fixture(scope='module')
def plain(tmp_path_factory):
    """A folder with a checkpoint without averages."""
    folder = str(tmp_path_factory.mktemp('plain'))
    kbench.run(**TRAIN, train_dir=folder)
    return folder


@pytest.mark.parametrize('values', (dict(eval=True, num_batches=100), {}))
def test_a_missing_average_is_an_error_that_names_it(plain, values):
    with pytest.raises(kbench.UserError) as caught:
        kbench.run(
            **TRAIN | dict(train_dir=plain, moving_average_decay=0.9) | values
        )
    text = str(caught.value)
    assert 'it lacks' in text
    assert '/ExponentialMovingAverage' in text
    assert '\n' not in text


def test_one_missing_average_is_named(trained, tmp_path):
    values = checkpoints.load(checkpoints.latest(trained))
    name = sorted(average_names(values))[3]
    del values[name]
    checkpoints.save(str(tmp_path), 2, values, keep=1)
    with pytest.raises(kbench.UserError) as caught:
        kbench.run(
            **TRAIN | dict(eval=True, num_batches=100),
            train_dir=str(tmp_path),
            moving_average_decay=0.9,
        )
    assert f'it lacks {name} (16,)' in str(caught.value)


def test_averages_may_end(trained, tmp_path, capsys):
    checkpoints.save(
        str(tmp_path),
        2,
        checkpoints.load(checkpoints.latest(trained)),
        keep=1,
    )
    result = kbench.run(**TRAIN, train_dir=str(tmp_path))
    assert 'the moving averages of' in capsys.readouterr().err
    assert not average_names(checkpoints.load(result.checkpoint))
