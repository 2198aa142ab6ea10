"""Checkpoints: written whole, read by name, refused in one line."""

import os

import numpy as np
import pytest
import tensorflow as tf

from kbench import checkpoints

VALUES = {
    'a/kernel': np.arange(6, dtype=np.float32).reshape(2, 3),
    'a/half': np.array([1.5, -2.0], np.float16),
    'global_step': np.int64(7),
}


def _variables(**changes):
    values = VALUES | changes
    return {name: tf.Variable(np.zeros_like(v)) for name, v in values.items()}


def test_what_was_saved_is_read(tmp_path):
    path = checkpoints.save(str(tmp_path), 7, VALUES, keep=5)
    assert path == str(tmp_path / 'model.ckpt-7')
    loaded = checkpoints.load(path)
    assert loaded.keys() == VALUES.keys()
    for name, value in VALUES.items():
        np.testing.assert_array_equal(loaded[name], value)
        assert loaded[name].dtype == value.dtype


def test_the_oldest_go_and_the_newest_is_found(tmp_path):
    folder = str(tmp_path)
    assert checkpoints.latest(folder) is None
    for step in (8, 9, 10, 100):
        checkpoints.save(folder, step, VALUES, keep=2)
    assert checkpoints.all_steps(folder) == [10, 100]
    assert checkpoints.latest(folder) == str(tmp_path / 'model.ckpt-100')
    assert tf.train.latest_checkpoint(folder) == checkpoints.latest(folder)
    left = sorted(os.listdir(folder))
    assert left == [
        'checkpoint',
        'model.ckpt-10.data-00000-of-00001',
        'model.ckpt-10.index',
        'model.ckpt-100.data-00000-of-00001',
        'model.ckpt-100.index',
    ]


def test_half_a_checkpoint_is_not_seen(tmp_path):
    folder = str(tmp_path)
    whole = checkpoints.save(folder, 1, VALUES, keep=5)
    (tmp_path / 'model.ckpt-2.data-00000-of-00001').write_bytes(b'half')
    assert checkpoints.latest(folder) == whole


def test_restoring(tmp_path):
    variables = _variables()
    checkpoints.restore('path', VALUES, variables, what='model m')
    for name, value in VALUES.items():
        np.testing.assert_array_equal(variables[name].numpy(), value)


@pytest.mark.parametrize(
    'change, parts',
    [
        (lambda v: v.pop('a/half'), ['lacks', 'a/half']),
        (lambda v: v.update(b=np.zeros(1)), ['holds b (1,) too']),
        (
            lambda v: v.update({'a/kernel': np.zeros((3, 3))}),
            ['a/kernel', '(3, 3)', '(2, 3)'],
        ),
    ],
)
def test_what_does_not_fit_changes_nothing(change, parts):
    values, variables = dict(VALUES), _variables()
    change(values)
    with pytest.raises(checkpoints.CheckpointError) as caught:
        checkpoints.restore('some/path', values, variables, what='model m')
    text = str(caught.value)
    for part in ['some/path', 'model m', *parts]:
        assert part in text
    assert '\n' not in text
    assert not any(np.any(v.numpy()) for v in variables.values())


def test_the_first_names_stand_for_many():
    values = {f'x{index}': np.zeros(1) for index in range(9)}
    match = r'x2 \(1,\) and 6 more too'
    with pytest.raises(checkpoints.CheckpointError, match=match):
        checkpoints.restore('p', values, {}, what='model m')


@pytest.mark.parametrize('end', ['index', 'data-00000-of-00001'])
@pytest.mark.parametrize('damage', ['cut', 'flip', 'gone'])
def test_damage_is_named(end, damage, tmp_path):
    values = {'big': np.random.default_rng(0).normal(size=5000)}
    path = checkpoints.save(str(tmp_path), 3, values, keep=5)
    file = f'{path}.{end}'
    with open(file, 'rb') as opened:
        data = bytearray(opened.read())
    os.remove(file)
    if damage != 'gone':
        middle = len(data) // 2
        data[middle] ^= 0xFF
        with open(file, 'wb') as opened:
            opened.write(data[:middle] if damage == 'cut' else data)
    with pytest.raises(checkpoints.CheckpointError) as caught:
        checkpoints.load(path)
    assert path in str(caught.value) and '\n' not in str(caught.value)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    file = tmp_path / 'file'
    file.touch()
    with pytest.raises(checkpoints.CheckpointError, match=r'model\.ckpt-1'):
        checkpoints.save(str(file), 1, VALUES, keep=1)
