"""Whole runs in this process: modes, devices, data, resuming, output."""

import json
import os
import re

import numpy as np
import pytest
import tensorflow as tf

import kbench
from kbench import checkpoints
from kbench.commands import prepare

MODES = ('parameter_server', 'replicated', 'independent')


@pytest.fixture(scope='module')
def digits_dir(tmp_path_factory):
    """TFRecord shards of the digits."""
    folder = str(tmp_path_factory.mktemp('digits'))
    prepare.main(
        ['--data_name=digits', f'--output_dir={folder}', '--num_shards=3'],
        progress=lambda text: None,
    )
    return folder


def _run(**values):
    """A short run on CPU devices, without warm-up unless it asks for one."""
    defaults = {
        'model': 'lenet',
        'device': 'cpu',
        'num_batches': 3,
        'num_warmup_batches': 0,
        'batch_size': 8,
        'learning_rate': 0.01,
    }
    return kbench.run(**(defaults | values))


@pytest.mark.parametrize('num_gpus', [1, 2])
@pytest.mark.parametrize('mode', MODES)
def test_synthetic_loss_falls(mode, num_gpus):
    result = _run(
        variable_update=mode,
        num_gpus=num_gpus,
        num_batches=8,
        optimizer='momentum',
    )
    assert len(result.losses) == 8
    assert np.isfinite(result.losses).all()
    assert result.losses[-1] < 0.9 * result.losses[0]
    assert result.step == 8
    assert result.images_per_sec > 0


@pytest.mark.parametrize('num_gpus', [1, 2])
@pytest.mark.parametrize('mode', MODES)
def test_real_loss_falls(mode, num_gpus, digits_dir):
    result = _run(
        variable_update=mode,
        num_gpus=num_gpus,
        data_dir=digits_dir,
        num_batches=30,
        batch_size=32 // num_gpus,
        optimizer='momentum',
        learning_rate=0.02,
    )
    assert np.mean(result.losses[-5:]) < 0.8 * np.mean(result.losses[:5])


def _weights(result):
    values = checkpoints.load(result.checkpoint)
    return {
        name: value
        for name, value in values.items()
        if name not in ('batches_seen', 'global_step')
    }


@pytest.mark.parametrize('data', ['synthetic', 'digits'])
@pytest.mark.parametrize('optimizer', ['sgd', 'momentum', 'rmsprop'])
def test_replicas_do_not_change_the_numbers(
    data, optimizer, digits_dir, tmp_path
):
    """1 x 8 images equal 2 x 4, in the modes that join gradients."""
    common = {
        'optimizer': optimizer,
        'num_batches': 3,
        'learning_rate': 0.002,
    }
    if data == 'digits':
        common['data_dir'] = digits_dir
    runs = [
        _run(
            variable_update=mode,
            num_gpus=count,
            batch_size=8 // count,
            train_dir=str(tmp_path / f'{mode}{count}'),
            **common,
        )
        for mode in MODES[:2]
        for count in (1, 2)
    ]
    for other in runs[1:]:
        np.testing.assert_allclose(other.losses, runs[0].losses, rtol=1e-6)
        weights = _weights(other)
        for name, value in _weights(runs[0]).items():
            # Slots add up gradients, which are larger than the updates.
            is_slot = name.rpartition('/')[2] not in ('kernel', 'bias')
            np.testing.assert_allclose(
                weights[name],
                value,
                rtol=1e-5 if is_slot else 1e-6,
                atol=3e-6 if is_slot else 1e-6,
                err_msg=name,
            )


@pytest.mark.parametrize('num_gpus', [1, 2])
@pytest.mark.parametrize('data', ['synthetic', 'digits'])
def test_resuming_is_the_uninterrupted_run(
    num_gpus, data, digits_dir, tmp_path
):
    """5 steps and 5 more equal 10, bit for bit, with batch norm."""
    common = {
        'model': 'resnet20',
        'variable_update': 'replicated',
        'num_gpus': num_gpus,
        'batch_size': 4,
        'optimizer': 'momentum',
        'moving_average_decay': 0.9,
        'num_epochs_per_decay': 0.01,
        'learning_rate_decay_factor': 0.9,
    }
    if data == 'digits':
        common['data_dir'] = digits_dir
    whole = _run(num_batches=10, train_dir=str(tmp_path / 'a'), **common)
    parts = [
        _run(num_batches=5, train_dir=str(tmp_path / 'b'), **common)
        for _ in range(2)
    ]
    assert parts[0].losses + parts[1].losses == whole.losses
    assert parts[1].step == whole.step == 10
    assert parts[1].learning_rate == whole.learning_rate
    resumed = checkpoints.load(parts[1].checkpoint)
    uninterrupted = checkpoints.load(whole.checkpoint)
    assert resumed.keys() == uninterrupted.keys()
    for name, value in uninterrupted.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)


def test_epochs_count_what_was_done(digits_dir, tmp_path, capsys):
    common = {
        'data_dir': digits_dir,
        'train_dir': str(tmp_path),
        'batch_size': 64,
        'num_batches': 100,
    }
    steps = int(1.5 * 1442 / 64)
    first = _run(num_epochs=1.5, **common)
    assert first.step == len(first.losses) == steps
    second = _run(num_epochs=2, num_warmup_batches=2, **common)
    assert second.step == int(2 * 1442 / 64)
    assert len(second.losses) == second.step - steps - 2
    third = _run(num_epochs=2, **common)
    assert third.losses == () and third.step == second.step
    assert 'done already' in capsys.readouterr().err


def test_checkpoints_in_the_middle(digits_dir, tmp_path):
    result = _run(
        data_dir=digits_dir,
        train_dir=str(tmp_path),
        num_batches=9,
        save_model_steps=2,
        max_ckpts_to_keep=3,
    )
    assert checkpoints.all_steps(str(tmp_path)) == [6, 8, 9]
    assert result.checkpoint == str(tmp_path / 'model.ckpt-9')
    assert tf.train.latest_checkpoint(str(tmp_path)) == result.checkpoint
    left = [name for name in os.listdir(tmp_path) if name.endswith('.index')]
    assert len(left) == 3


def test_evaluation_counts_every_image_once(digits_dir, tmp_path):
    _run(
        model='resnet20',
        data_dir=digits_dir,
        train_dir=str(tmp_path),
        num_batches=20,
        batch_size=32,
        learning_rate=0.05,
    )
    found = [
        kbench.run(
            eval=True,
            train_dir=str(tmp_path),
            batch_size=batch_size,
            num_gpus=num_gpus,
            variable_update=mode,
            device='cpu',
        ).evaluation
        for batch_size, num_gpus, mode in (
            (355, 1, 'parameter_server'),
            (64, 2, 'replicated'),
            (7, 4, 'independent'),
        )
    ]
    assert 0.1 < found[0].top_1 <= found[0].top_5 <= 1
    for one in found:
        assert one.num_images == 355
        assert one.top_1 == found[0].top_1
        assert one.top_5 == found[0].top_5
        assert one.loss == pytest.approx(found[0].loss, rel=1e-4)


def test_forward_only_changes_nothing():
    result = _run(forward_only=True, num_gpus=2, num_batches=4)
    assert len(result.losses) == 4
    assert len(set(result.losses)) == 1
    assert result.mode == 'forward-only'


def test_digits_come_along():
    result = _run(data_name='digits', num_batches=2, batch_size=16)
    assert np.isfinite(result.losses).all()


def test_parameters_are_saved(tmp_path):
    result = _run(train_dir=str(tmp_path), weight_decay=0.0)
    saved = kbench.load_params(str(tmp_path))
    assert saved.model == 'lenet' and saved.weight_decay == 0.0
    with open(tmp_path / 'parameters.json', encoding='utf-8') as file:
        assert json.load(file)['learning_rate'] == 0.01
    assert result.checkpoint == str(tmp_path / 'model.ckpt-3')


_STEP_LINE = re.compile(
    r'^\d+\timages/sec: \d+\.\d \+/- \d+\.\d \(jitter = \d+\.\d\)\t\d+\.\d{3}'
    r'(\t\d\.\d{3}\t\d\.\d{3})?$'
)


@pytest.mark.parametrize('accuracy', [False, True])
def test_standard_output_is_what_scripts_parse(accuracy, capsys):
    result = _run(
        num_gpus=2,
        variable_update='replicated',
        num_batches=7,
        display_every=3,
        print_training_accuracy=accuracy,
    )
    lines = capsys.readouterr().out.splitlines()
    rule = lines.index('==========')
    head = '\n'.join(lines[:rule])
    for wanted in (
        'Model:       lenet',
        'Dataset:     imagenet (synthetic)',
        'Mode:        training',
        'Batch size:  16 global\n             8 per device',
        'Num batches: 7',
        "Devices:     ['/cpu:0', '/cpu:1']",
        'Data format: NHWC',
        'Optimizer:   sgd',
        'Learning rate: 0.01',
        'Variables:   replicated',
    ):
        assert wanted in head
    table = lines[rule + 1]
    columns = '\ttop_1_accuracy\ttop_5_accuracy' if accuracy else ''
    assert table == f'Step\tImg/sec\ttotal_loss{columns}'
    steps = lines[rule + 2 : -3]
    assert [line.split('\t')[0] for line in steps] == ['1', '3', '6']
    for line in steps:
        match = _STEP_LINE.match(line)
        assert match and bool(match.group(1)) == accuracy
    assert lines[-3] == lines[-1] == '-' * 64
    assert lines[-2] == f'total images/sec: {result.images_per_sec:.2f}'
    assert steps[0].split('\t')[2] == f'{result.losses[0]:.3f}'


def test_total_counts_all_devices():
    result = _run(num_gpus=2, num_batches=6)
    seconds = sum(result.step_times_sec)
    assert result.images_per_sec == pytest.approx(6 * 16 / seconds, rel=0.2)


def test_ignored_parameters_give_one_notice(capsys):
    _run(model='trivial', batch_size=1, num_batches=1, use_tf_layers=False)
    notices = [
        line
        for line in capsys.readouterr().err.splitlines()
        if 'use_tf_layers' in line
    ]
    assert len(notices) == 1
