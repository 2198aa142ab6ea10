"""Checkpoints: written whole, read by name, refused in one line."""

import contextlib
import functools
import glob
import os
import resource
import shutil
import subprocess
import threading

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
    folder = tmp_path / 'a folder'
    folder.mkdir()
    path = checkpoints.save(str(folder), 3, values, keep=5)
    file = f'{path}.{end}'
    with open(file, 'rb') as opened:
        data = bytearray(opened.read())
    os.remove(file)
    if damage != 'gone':
        middle = len(data) // 2
        data[middle] ^= 0xFF
        with open(file, 'wb') as opened:
            opened.write(data[:middle] if damage == 'cut' else data)
    with pytest.raises(checkpoints.DamagedError) as caught:
        checkpoints.load(path)
    assert caught.value.path == path
    assert path in str(caught.value) and '\n' not in str(caught.value)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    file = tmp_path / 'file'
    file.touch()
    with pytest.raises(checkpoints.CheckpointError, match=r'model\.ckpt-1'):
        checkpoints.save(str(file), 1, VALUES, keep=1)


def _damage(path, how):
    data, index = f'{path}.data-00000-of-00001', f'{path}.index'
    if how == 'no data':
        os.remove(data)
    elif how == 'empty index':
        os.truncate(index, 0)
    elif how == 'empty data':
        os.truncate(data, 0)
    elif how == 'cut data':
        os.truncate(data, os.path.getsize(data) - 1)
    else:
        with open(data, 'r+b') as file:
            file.seek(os.path.getsize(data) // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize(
    'how', ['no data', 'empty index', 'empty data', 'cut data', 'a bit']
)
def test_the_one_before_a_damaged_one_is_used(how, tmp_path):
    folder = str(tmp_path)
    for step in (1, 2, 3):
        checkpoints.save(folder, step, VALUES | {'s': np.int64(step)}, keep=5)
    newest = checkpoints.path_of(folder, 3)
    _damage(newest, how)
    told = []
    path, values, passed_over = checkpoints.load_newest(folder, told.append)
    assert path == checkpoints.path_of(folder, 2) and values['s'] == 2
    assert passed_over == [newest]
    assert len(told) == 1 and '\n' not in told[0]
    assert newest in told[0] and 'going back to model.ckpt-2' in told[0]
    checkpoints.set_aside(newest)
    assert checkpoints.all_steps(folder) == [1, 2]


def test_when_all_are_damaged_that_is_an_error(tmp_path):
    folder = str(tmp_path)
    for step in (1, 2):
        checkpoints.save(folder, step, VALUES, keep=5)
        _damage(checkpoints.path_of(folder, step), 'empty data')
    told = []
    with pytest.raises(checkpoints.CheckpointError) as caught:
        checkpoints.load_newest(folder, told.append)
    text = str(caught.value)
    assert 'are damaged (2)' in text and 'model.ckpt-2' in text
    assert '\n' not in text and told == []
    assert checkpoints.load_newest(str(tmp_path / 'none'), told.append) is None


def test_a_kill_while_the_same_step_is_written_again_loses_nothing(tmp_path):
    """Between the two moves the data is new and the index is old."""
    folder = str(tmp_path)
    old = VALUES | {'a/kernel': np.ones((2, 3), np.float32)}
    path = checkpoints.save(folder, 7, old, keep=1)
    for file in list(tmp_path.glob('model.ckpt-7.*')):
        os.link(file, str(file).replace('-7.', '-7.before.'))
    other = checkpoints.save(str(tmp_path / '..'), 7, VALUES, keep=1)
    os.replace(f'{other}.data-00000-of-00001', f'{path}.data-00000-of-00001')
    found, values, passed_over = checkpoints.load_newest(folder, str)
    assert found == f'{path}.before' and passed_over == [path]
    np.testing.assert_array_equal(values['a/kernel'], old['a/kernel'])
    checkpoints.save(folder, 7, VALUES, keep=1)
    assert not list(tmp_path.glob('*.before*'))
    loaded = checkpoints.load(path)
    np.testing.assert_array_equal(loaded['a/kernel'], VALUES['a/kernel'])


def test_what_a_kill_leaves_half_written_is_removed(tmp_path):
    whole = checkpoints.save(str(tmp_path), 1, VALUES, keep=5)
    partial = tmp_path / 'model.ckpt-2.partial-abc'
    partial.mkdir()
    (partial / 'model.ckpt-2.data-00000-of-00001').write_bytes(b'half')
    (tmp_path / 'model.ckpt-2.data-00000-of-00001').write_bytes(b'half')
    checkpoints.Writer(str(tmp_path), keep=5).close()
    assert sorted(os.listdir(tmp_path)) == sorted(
        ['checkpoint', *(os.path.basename(f) for f in glob.glob(f'{whole}.*'))]
    )


def test_a_writer_writes_beside_the_caller(tmp_path):
    writer = checkpoints.Writer(str(tmp_path), keep=5)
    goes_on = threading.Event()

    def wait(values):
        del values
        assert goes_on.wait(30)

    with contextlib.closing(writer):
        writer.write(VALUES, 1, wait)
        assert writer.busy and checkpoints.all_steps(str(tmp_path)) == []
        threading.Timer(0.2, goes_on.set).start()
        # The next one waits, so that one copy is in memory at most.
        values = writer.copy(lambda: VALUES)
        assert not writer.busy and writer.last_is_there
        writer.write(values, 2)
        writer.wait()
    assert checkpoints.all_steps(str(tmp_path)) == [1, 2]
    times = writer.times
    assert len(times.write_sec) == 2 and len(times.copy_sec) == 1
    assert 0.1 < times.wait_sec < 30 and times.failed == 0
    assert '2 checkpoints' in str(times)


def test_what_a_writer_finds_comes_with_the_next_call(tmp_path):
    writer = checkpoints.Writer(str(tmp_path), keep=5)
    bad = VALUES | {'a/half': np.array([np.inf, 1], np.float16)}
    with contextlib.closing(writer):
        writer.write(
            bad, 1, functools.partial(checkpoints.check_finite, step=9)
        )
        with pytest.raises(checkpoints.CheckpointError, match='a/half is not'):
            writer.wait()
        writer.write(VALUES, 2)
        writer.wait()
    assert checkpoints.all_steps(str(tmp_path)) == [2]


@contextlib.contextmanager
def _small_disk(tmp_path, size):
    """A file system of so many bytes, or a limit on files where none mounts."""
    folder = tmp_path / 'disk'
    folder.mkdir()
    mounted = (
        subprocess.run(
            ['mount', '-t', 'tmpfs', '-o', f'size={size}', 'tmpfs', folder],
            check=False,
            capture_output=True,
        ).returncode
        == 0
        if shutil.which('mount')
        else False
    )
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if not mounted:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, before[1]))
    try:
        yield str(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        if mounted:
            subprocess.run(['umount', folder], check=True)


def test_a_full_disk_leaves_the_old_ones(tmp_path):
    big = {'big': np.random.default_rng(0).normal(size=100_000)}
    small = {'small': np.zeros(10)}
    with _small_disk(tmp_path, 1_000_000) as folder:
        told = []
        writer = checkpoints.Writer(folder, 5, told.append)
        with contextlib.closing(writer):
            writer.write(small, 1)
            writer.write(big | {'more': big['big']}, 2)
            assert str(writer.wait()) in told[0]
            assert not writer.last_is_there and writer.times.failed == 1
            with pytest.raises(checkpoints.CheckpointError) as caught:
                writer.finish(big | {'more': big['big']}, 3)
        assert len(told) == 1 and '\n' not in told[0]
        assert f'{folder}/model.ckpt-2 could not be written' in told[0]
        assert 'the training goes on' in told[0]
        assert '\n' not in str(caught.value)
        assert checkpoints.latest(folder) == f'{folder}/model.ckpt-1'
        assert checkpoints.load(f'{folder}/model.ckpt-1').keys() == {'small'}
        assert not glob.glob(f'{folder}/*partial*')


def test_a_snapshot_stays_what_it_was():
    variables = _variables()
    take = checkpoints.make_snapshot(variables)
    before = take()
    for name, variable in variables.items():
        variable.assign(VALUES[name])
        variable.assign_add(variable)
    for name, value in before.items():
        assert not np.any(value.numpy())
        assert np.any(take()[name].numpy() == 2 * VALUES[name])


@pytest.mark.parametrize(
    'scopes, names, count',
    [
        ('a:b', ['b/half', 'b/kernel', 'global_step'], 2),
        ('a/:b/c/', ['b/c/half', 'b/c/kernel', 'global_step'], 2),
        ('a:', ['global_step', 'half', 'kernel'], 2),
        (':x', ['x/a/half', 'x/a/kernel', 'x/global_step'], 3),
        ('ab:c', ['a/half', 'a/kernel', 'global_step'], 0),
    ],
)
def test_scopes(scopes, names, count):
    renamed, found = checkpoints.rename(VALUES, scopes)
    assert sorted(renamed) == names and found == count
