"""Same seed and flags, same losses; and what is kept when they go wrong."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import kbench
from kbench import checkpoints

TRAIN = dict(
    model='resnet20',
    data_name='digits',
    device='cpu',
    num_gpus=2,
    variable_update='replicated',
    batch_size=4,
    num_warmup_batches=0,
    num_batches=4,
    learning_rate=0.05,
    optimizer='momentum',
    moving_average_decay=0.9,
)
SCRIPT = """
import json, sys
import kbench

result = None
for values in json.loads(sys.argv[1]):
    result = kbench.run(**values)
    print('losses', [loss.hex() for loss in result.losses])
from tensorflow.python.framework import config
print('deterministic', config.is_op_determinism_enabled())
"""


def in_a_process(*runs):
    """Runs in a new process; returns losses and whether ops are so."""
    done = subprocess.run(
        [sys.executable, '-c', SCRIPT, json.dumps(runs)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    losses, deterministic = [], None
    for line in done.stdout.splitlines():
        word, _, text = line.partition(' ')
        if word == 'losses':
            losses += json.loads(text.replace("'", '"'))
        if word == 'deterministic':
            deterministic = text == 'True'
    return losses, deterministic


def latest(folder):
    return checkpoints.load(checkpoints.latest(str(folder)))


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


@pytest.mark.slow
def test_processes_and_resuming_give_the_same_bits(tmp_path):
    """Real images, augmentation, two replicas, averages, momentum."""
    whole, resumed = tmp_path / 'whole', tmp_path / 'resumed'
    half = TRAIN | dict(num_batches=2, train_dir=str(resumed))
    first, plain = in_a_process(TRAIN | dict(train_dir=str(whole)))
    second, _ = in_a_process(half, half)
    assert len(first) == 4
    assert len(set(first)) == 4
    assert first == second
    assert not plain
    assert_same_bits(latest(whole), latest(resumed))


@pytest.mark.slow
def test_deterministic_turns_op_determinism_on():
    values = TRAIN | dict(model='lenet', deterministic=True, num_batches=2)
    losses, strict = in_a_process(values, values)
    assert strict
    assert losses[:2] == losses[2:]


@pytest.mark.parametrize(
    'values',
    (
        dict(compute_dtype='bfloat16'),
        dict(use_fp16=True, fp16_enable_auto_loss_scale=True),
        dict(optimizer='lamb', variable_update='parameter_server'),
        # One device: independent copies are not all saved.
        dict(variable_update='independent', num_gpus=1),
        dict(num_grad_accumulation=2, learning_rate_schedule='cosine'),
    ),
)
def test_resuming_gives_the_same_bits(values, tmp_path):
    """In one process, with what else is saved: scales, slots, places."""
    values = TRAIN | dict(model='trivial', num_batches=100) | values
    # 1,442 images: two and four updates.
    epoch = (
        4 * values['num_gpus'] * values.get('num_grad_accumulation', 1) / 1440
    )
    length = dict(num_epochs=4.001 * epoch)
    whole = kbench.run(
        **values | length | dict(train_dir=str(tmp_path / 'whole'))
    )
    again = kbench.run(**values | length)
    assert again.losses == whole.losses
    folder = dict(train_dir=str(tmp_path / 'resumed'))
    if 'learning_rate_schedule' in values:
        # A cosine has one length: stop in the middle by saving there.
        kbench.run(**values | length | folder | dict(save_model_steps=2))
        for file in (tmp_path / 'resumed').glob('model.ckpt-4.*'):
            os.remove(file)
    else:
        kbench.run(**values | folder | dict(num_epochs=2.001 * epoch))
    resumed = kbench.run(**values | length | folder)
    assert resumed.losses == whole.losses[2:]
    assert_same_bits(latest(tmp_path / 'whole'), latest(tmp_path / 'resumed'))


def test_another_seed_gives_other_losses():
    values = TRAIN | dict(model='trivial', num_batches=2)
    assert (
        kbench.run(**values).losses
        != kbench.run(**values, tf_random_seed=7).losses
    )


def test_a_cosine_without_a_length_is_not_resumed(tmp_path):
    values = TRAIN | dict(
        model='trivial',
        learning_rate_schedule='cosine',
        train_dir=str(tmp_path),
    )
    kbench.run(**values)
    with pytest.raises(kbench.UserError, match='needs --num_epochs'):
        kbench.run(**values)


SMALL = dict(
    model='trivial',
    data_name='digits',
    device='cpu',
    batch_size=8,
    num_warmup_batches=0,
    num_batches=1,
    learning_rate=0.01,
)


@pytest.mark.parametrize(
    'saved, asked',
    (
        ('sgd', 'momentum'),
        ('momentum', 'sgd'),
        ('momentum', 'lars'),
        ('adam', 'adamw'),
        ('rmsprop', 'lamb'),
    ),
)
def test_a_checkpoint_of_another_optimizer(saved, asked, tmp_path):
    values = SMALL | dict(train_dir=str(tmp_path))
    kbench.run(**values, optimizer=saved)
    with pytest.raises(kbench.UserError) as caught:
        kbench.run(**values, optimizer=asked)
    text = str(caught.value)
    assert f'does not fit a training with --optimizer={asked}' in text
    assert '\n' not in text
    result = kbench.run(
        eval=True, train_dir=str(tmp_path), device='cpu', optimizer=asked
    )
    assert result.evaluation.num_images == 355


def command(*flags):
    """The program as a user starts it."""
    return subprocess.run(
        [sys.executable, '-m', 'kbench', *flags],
        capture_output=True,
        text=True,
        check=False,
    )


def flags_of(values):
    return [f'--{name}={value}' for name, value in values.items()]


@pytest.mark.slow
def test_stop_on_nan(tmp_path):
    values = SMALL | dict(train_dir=str(tmp_path))
    good = kbench.run(**values)
    before = latest(tmp_path)
    files = sorted(tmp_path.glob('model.ckpt-1*'))
    contents = [file.read_bytes() for file in files]
    bad = values | dict(
        learning_rate=1e38,
        num_batches=20,
        save_model_steps=1,
        max_ckpts_to_keep=1,
    )
    done = command(*flags_of(bad), '--stop_on_nan')
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith('kbench: error: ')
    assert 'not finite' in last or 'the loss is' in last
    assert 'step 3' in last
    assert 'total images/sec' not in done.stdout
    assert checkpoints.latest(str(tmp_path)) == good.checkpoint
    assert [file.read_bytes() for file in files] == contents
    assert_same_bits(before, latest(tmp_path))


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    """The last loss is finite, and what came after it is not."""
    values = SMALL | dict(train_dir=str(tmp_path))
    good = kbench.run(**values)
    with pytest.raises(kbench.UserError) as caught:
        kbench.run(
            **values | dict(learning_rate=1e30, weight_decay=1e30),
            stop_on_nan=True,
        )
    text = str(caught.value)
    assert text.endswith('after step 2: no checkpoint is written')
    assert checkpoints.latest(str(tmp_path)) == good.checkpoint


def test_with_stop_on_nan_every_due_checkpoint_comes(tmp_path):
    kbench.run(
        **SMALL | dict(num_batches=5, save_model_steps=2),
        train_dir=str(tmp_path),
        stop_on_nan=True,
    )
    assert checkpoints.all_steps(str(tmp_path)) == [2, 4, 5]


def test_a_bad_loss_is_told_when_it_comes_and_at_the_end(capsys):
    result = kbench.run(
        **SMALL | dict(learning_rate=1e38, num_batches=6, display_every=1)
    )
    assert result.first_bad_step == 2
    told = [
        line
        for line in capsys.readouterr().err.splitlines()
        if 'the loss' in line
    ]
    assert len(told) == 2
    assert 'at step 2' in told[0]
    assert told[1] == 'kbench: the loss was not finite from step 2 on'
