"""What a run goes on from, begins from, evaluates, and survives."""

import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import poisoned_model
import pytest

import kbench
from kbench import checkpoints, datasets, models, preprocessing
from kbench import input as input_lib

SMALL = dict(
    model='lenet',
    data_name='digits',
    device='cpu',
    batch_size=8,
    num_warmup_batches=0,
    num_batches=4,
    learning_rate=0.01,
    optimizer='momentum',
)
EVAL = dict(eval=True, device='cpu', batch_size=355)


def load(path):
    return checkpoints.load(str(path))


def told(capsys):
    return [
        line.removeprefix('kbench: ')
        for line in capsys.readouterr().err.splitlines()
    ]


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A folder with the checkpoints of steps 2 and 4."""
    folder = tmp_path_factory.mktemp('trained')
    kbench.run(**SMALL, train_dir=str(folder), save_model_steps=2)
    return folder


@pytest.fixture
def folder(trained, tmp_path):
    """A copy of it that a test may change."""
    copy = tmp_path / 'run'
    copy.mkdir()
    for file in trained.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    return copy


def test_the_cost_of_saving_is_told(trained, tmp_path, capsys):
    result = kbench.run(**SMALL, train_dir=str(tmp_path), save_model_steps=1)
    # The fourth is that of the end.
    assert checkpoints.all_steps(str(tmp_path)) == [1, 2, 3, 4]
    assert len(result.saves.write_sec) == len(result.saves.copy_sec) == 3
    assert 0 < sum(result.saves.copy_sec) < 10
    assert result.saves.failed == 0
    lines = [line for line in told(capsys) if '3 checkpoints in the ' in line]
    assert len(lines) == 1 and 'stood still' in lines[0]
    last_only = kbench.run(**SMALL, train_dir=str(tmp_path / 'last')).saves
    assert last_only.write_sec == last_only.copy_sec == ()
    assert not [line for line in told(capsys) if 'stood still' in line]
    assert kbench.run(**SMALL).saves is None


@pytest.mark.parametrize('file', ['index', 'data-00000-of-00001'])
def test_a_run_goes_back_past_a_damaged_checkpoint(file, folder, capsys):
    os.truncate(folder / f'model.ckpt-4.{file}', 10)
    result = kbench.run(**SMALL | dict(num_batches=2), train_dir=str(folder))
    lines = told(capsys)
    assert sum('model.ckpt-4 cannot be read' in line for line in lines) == 1
    assert any('resuming from' in line and '-2 at' in line for line in lines)
    assert result.step == 4
    # It is as if the damaged one had never been.
    again = kbench.run(**EVAL, train_dir=str(folder))
    assert again.checkpoint == str(folder / 'model.ckpt-4')
    assert (folder / f'model.ckpt-4.damaged.{file}').exists()


def test_evaluation_goes_back_too(folder, capsys):
    os.truncate(folder / 'model.ckpt-4.index', 0)
    result = kbench.run(**EVAL, train_dir=str(folder))
    assert result.checkpoint == str(folder / 'model.ckpt-2')
    assert result.step == 2
    assert any('going back to model.ckpt-2' in line for line in told(capsys))
    os.truncate(folder / 'model.ckpt-2.index', 0)
    with pytest.raises(kbench.UserError, match=r'are damaged \(2\)'):
        kbench.run(**EVAL, train_dir=str(folder))


def test_a_checkpoint_by_its_path(trained, tmp_path, capsys):
    second = str(trained / 'model.ckpt-2')
    # The model and the data come from the folder of the checkpoint.
    evaluated = kbench.run(**EVAL, checkpoint=second)
    assert evaluated.checkpoint == second and evaluated.step == 2
    same = kbench.run(**EVAL, checkpoint=second + '.index')
    assert same.evaluation.loss == evaluated.evaluation.loss
    # Two steps from there are the steps 3 and 4.
    values = SMALL | dict(num_batches=2, train_dir=str(tmp_path))
    kbench.run(**values, checkpoint=second)
    one, other = load(trained / 'model.ckpt-4'), load(tmp_path / 'model.ckpt-4')
    for name, value in one.items():
        np.testing.assert_array_equal(other[name], value, err_msg=name)
    capsys.readouterr()
    # Started again, it goes on from its own.
    result = kbench.run(**values, checkpoint=second)
    assert result.step == 6
    assert any('is not read' in line for line in told(capsys))


@pytest.mark.parametrize(
    'values, text',
    [
        (dict(checkpoint='{}/model.ckpt-2', train_dir='{}'), 'not the newest'),
        (dict(checkpoint='{}/model.ckpt-3'), 'is no checkpoint'),
        (dict(checkpoint='{}/none.keras'), 'cannot be read'),
        (dict(checkpoint='a', init_checkpoint='b'), 'exclude each other'),
        (dict(eval=True, init_checkpoint='b'), '--eval takes --checkpoint'),
        (dict(ckpt_scope='a'), 'takes old:new'),
        (dict(recover_on_nan=1), 'needs --train_dir'),
        (
            dict(recover_on_nan=1, train_dir='{}', data_name='imagenet'),
            'synthetic batches are all the same',
        ),
        (
            dict(init_checkpoint='{}', ckpt_scope='no/such:b'),
            'no variable of',
        ),
        (dict(init_checkpoint='{}', model='resnet20'), 'it lacks'),
    ],
)
def test_refusals(values, text, trained):
    values = {
        name: value.format(trained) if isinstance(value, str) else value
        for name, value in values.items()
    }
    with pytest.raises(kbench.UserError) as caught:
        kbench.run(**SMALL | values)
    assert text in str(caught.value) and '\n' not in str(caught.value)


def test_a_new_run_from_weights(trained, tmp_path, capsys):
    values = SMALL | dict(
        optimizer='sgd',
        num_batches=1,
        learning_rate=0.0,
        train_dir=str(tmp_path),
        init_checkpoint=str(trained),
        moving_average_decay=0.5,
    )
    assert kbench.run(**values).step == 1
    one, other = load(trained / 'model.ckpt-4'), load(tmp_path / 'model.ckpt-1')
    weights = [name for name in other if name.endswith(('kernel', 'bias'))]
    assert weights
    for name in weights:
        np.testing.assert_array_equal(other[name], one[name], err_msg=name)
        # The averages begin with these weights, not with random ones.
        np.testing.assert_allclose(
            other[f'{name}/ExponentialMovingAverage'], one[name], rtol=1e-6
        )
    assert other['batches_seen'] == 1
    assert not any('anew' in line for line in told(capsys))


def test_the_head_of_other_classes_is_left_out(trained, tmp_path, capsys):
    kbench.run(
        **SMALL
        | dict(
            num_batches=1,
            learning_rate=0.0,
            num_classes=12,
            train_dir=str(tmp_path),
            init_checkpoint=str(trained / 'model.ckpt-4'),
        )
    )
    one, other = load(trained / 'model.ckpt-4'), load(tmp_path / 'model.ckpt-1')
    assert other['logits/kernel'].shape[-1] == 12
    np.testing.assert_array_equal(other['conv1/kernel'], one['conv1/kernel'])
    lines = [line for line in told(capsys) if 'anew' in line]
    assert len(lines) == 1
    for part in ('logits/bias', 'logits/kernel', '10 classes', 'has 12'):
        assert part in lines[0]


def test_scopes_are_renamed(trained, tmp_path, capsys):
    values = load(trained / 'model.ckpt-4')
    moved = {f'tower/{name}': value for name, value in values.items()}
    checkpoints.save(str(tmp_path), 4, moved, keep=1)
    plain = kbench.run(**EVAL, train_dir=str(trained))
    named = EVAL | dict(model='lenet', data_name='digits')
    with pytest.raises(kbench.UserError, match=r'lacks conv1/bias \(32,\)'):
        kbench.run(**named, checkpoint=str(tmp_path))
    found = kbench.run(**named, checkpoint=str(tmp_path), ckpt_scope='tower:')
    assert found.evaluation.loss == plain.evaluation.loss


@pytest.mark.parametrize(
    'changes, text',
    [
        (dict(tf_random_seed=7), 'another order: --tf_random_seed is 7'),
        (dict(batch_size=7), '4 images come again: the global batch of 7'),
        (dict(batch_size=4), None),
        (dict(batch_size=4, num_gpus=2, variable_update='replicated'), None),
    ],
)
def test_what_changes_over_a_resume_is_told(changes, text, folder, capsys):
    result = kbench.run(
        **SMALL | dict(num_batches=1, train_dir=str(folder)) | changes
    )
    lines = told(capsys)
    if text is None:
        assert not any('again:' in line or 'order' in line for line in lines)
    else:
        assert sum(text in line for line in lines) == 1
    size = changes.get('batch_size', 8) * changes.get('num_gpus', 1)
    seen = load(result.checkpoint)['images_seen']
    assert seen == 32 // size * size + size


def test_the_same_images_follow_in_other_batches(trained, tmp_path):
    """Steps 3 and 4 at once: the images are those of one larger batch."""
    batches = {}
    for name, changes in {
        'two': dict(num_batches=2),
        'one': dict(num_batches=1, batch_size=16),
    }.items():
        batches[name] = kbench.run(
            **SMALL
            | dict(
                checkpoint=str(trained / 'model.ckpt-2'),
                learning_rate=0.0,
                weight_decay=0.0,
            )
            | changes
        ).losses
    assert batches['one'][0] == pytest.approx(np.mean(batches['two']), 1e-5)


@pytest.mark.parametrize('on_save_error', ['warn', 'stop'])
def test_a_full_disk(on_save_error, folder, capsys):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = {file: file.read_bytes() for file in folder.glob('model.ckpt-*')}
    values = SMALL | dict(
        train_dir=str(folder), save_model_steps=2, on_save_error=on_save_error
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        with pytest.raises(kbench.UserError) as caught:
            kbench.run(**values)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    captured = capsys.readouterr()
    lines = [
        line
        for line in captured.err.splitlines()
        if 'could not be written' in line
    ]
    assert 'could not be written' in str(caught.value)
    assert '\n' not in str(caught.value)
    goes_on = on_save_error == 'warn'
    assert len(lines) == goes_on
    if goes_on:
        assert 'total images/sec' in captured.out
    assert {f: f.read_bytes() for f in folder.glob('model.ckpt-*')} == old
    assert kbench.run(**values).step == 8


def test_recovering_goes_on_behind_the_bad_batch(tmp_path, capsys):
    digits = datasets.open_dataset(None, 'digits')
    stream = input_lib.create_train_dataset(
        digits,
        config=input_lib.InputConfig(),
        image_size=8,
        batch_size=8,
        seed=kbench.Params().tf_random_seed,
    )
    eighth = next(iter(stream.skip(7)))[0]
    poisoned_model.bad_mean = float(
        np.mean(preprocessing.normalize(eighth, 'float32'))
    )
    values = SMALL | dict(
        model='poisoned_model:build', save_model_steps=2, num_batches=12
    )
    result = kbench.run(
        **values, recover_on_nan=1, train_dir=str(tmp_path / 'a')
    )
    assert result.recoveries == 1 and result.first_bad_step == 8
    assert result.step == 12 and len(result.losses) == 14
    assert [n for n, x in enumerate(result.losses, 1) if np.isnan(x)] == [8]
    lines = [line for line in told(capsys) if 'recovery' in line]
    assert len(lines) == 1
    assert 'at step 8: back to model.ckpt-6, 2 steps' in lines[0]
    saved = load(result.checkpoint)
    assert saved['batches_seen'] == 14 and saved['images_seen'] == 14 * 8
    # Without it the same run ends there.
    with pytest.raises(kbench.UserError, match='loss is nan at step 8'):
        kbench.run(**values, stop_on_nan=True)


def test_recovering_ends(tmp_path, capsys):
    values = SMALL | dict(
        num_batches=12, save_model_steps=2, train_dir=str(tmp_path)
    )
    with pytest.raises(kbench.UserError) as caught:
        kbench.run(**values | dict(learning_rate=1e20), recover_on_nan=2)
    assert '--recover_on_nan=2 is used up' in str(caught.value)
    assert 'the loss is' in str(caught.value)
    lines = [line for line in told(capsys) if 'recovery' in line]
    assert len(lines) == 2
    assert 'recovery 1 of 2' in lines[0] and 'recovery 2 of 2' in lines[1]
    assert 'back to model.ckpt-0' in lines[0]
    # All that is saved is finite.
    for step in checkpoints.all_steps(str(tmp_path)):
        values = load(tmp_path / f'model.ckpt-{step}')
        assert all(np.isfinite(value).all() for value in values.values())


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_signals_save(number, folder):
    flags = SMALL | dict(num_batches=10**6, train_dir=folder)
    process = subprocess.Popen(
        [
            *(sys.executable, '-m', 'kbench'),
            *(f'--{name}={value}' for name, value in flags.items()),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert any(line.startswith('1\t') for line in process.stdout)
    time.sleep(0.5)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    step = checkpoints.all_steps(str(folder))[-1]
    assert step > 5 and f'ended after step {step}; saved ' in err
    assert 'total images/sec' in out
    assert load(folder / f'model.ckpt-{step}')['global_step'] == step


# Keras's own way from variables to arrays.
@pytest.mark.filterwarnings('ignore:__array__ implementation')
def test_weights_that_keras_saved(trained, tmp_path):
    """The same network, saved by Keras, evaluates the same."""
    model = models.create_model(models.get_spec('lenet'), 10)
    checkpoints.restore(
        'trained',
        load(trained / 'model.ckpt-4'),
        {weight.path: weight for weight in model.weights},
        what='lenet',
        exact=False,
    )
    path = str(tmp_path / 'lenet.weights.h5')
    model.save_weights(path)
    plain = kbench.run(**EVAL, train_dir=str(trained))
    found = kbench.run(
        **EVAL, model='lenet', data_name='digits', checkpoint=path
    )
    assert found.evaluation.loss == plain.evaluation.loss
    begun = kbench.run(
        **SMALL | dict(num_batches=1, num_classes=12), init_checkpoint=path
    )
    assert begun.step == 1
    with pytest.raises(kbench.UserError, match='holds weights alone'):
        kbench.run(**SMALL, checkpoint=path)
