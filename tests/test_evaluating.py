"""Evaluation beside a training, in the middle of one, and once."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import event_files
import pytest

import kbench
from kbench import checkpoints, params
from kbench.benchmark import ending


def _run(**values):
    defaults = {
        'model': 'lenet',
        'data_name': 'digits',
        'device': 'cpu',
        'num_batches': 8,
        'num_warmup_batches': 2,
        'batch_size': 16,
        'learning_rate': 0.02,
        'optimizer': 'momentum',
    }
    return kbench.run(**(defaults | values))


def _evaluate(folder, **values):
    return kbench.run(eval=True, train_dir=str(folder), device='cpu', **values)


def _read(path):
    with open(path, encoding='utf-8') as file:
        return json.load(file)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A folder with the checkpoints of steps 4, 8 and 10."""
    folder = tmp_path_factory.mktemp('trained')
    _run(train_dir=str(folder), save_model_steps=4)
    assert checkpoints.all_steps(str(folder)) == [4, 8, 10]
    return folder


def test_each_checkpoint_once_and_the_newest_first(trained, capsys):
    result = _evaluate(trained, eval_interval_secs=1)
    assert [step for step, _ in result.evaluations] == [10, 8, 4]
    assert result.step == 10
    assert result.evaluation == result.evaluations[0][1]
    folder = trained / 'eval'
    events = event_files.read(folder)
    for step, found in result.evaluations:
        entry = _read(folder / f'model.ckpt-{step}.json')
        assert entry['step'] == step and entry['num_images'] == 355
        assert entry['top_1'] == found.top_1 and entry['loss'] == found.loss
        assert events['evaluation/top_1', step][1] == pytest.approx(found.top_1)
    best = _read(folder / 'best.json')
    assert best['top_1'] == max(one.top_1 for _, one in result.evaluations)
    copied = checkpoints.load(best['copy'])
    original = checkpoints.load(best['checkpoint'])
    assert copied.keys() == original.keys()
    assert os.listdir(folder / 'best')
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith('Accuracy @ 1 = ') for line in lines) == 3


def test_an_evaluator_that_starts_again_repeats_nothing(trained, capsys):
    _evaluate(trained, eval_interval_secs=1)
    capsys.readouterr()
    result = _evaluate(trained, eval_interval_secs=1)
    assert 'Accuracy' not in capsys.readouterr().out
    assert result.evaluations == ()
    # But a checkpoint that was written anew is another one.
    os.utime(trained / 'model.ckpt-8.index')
    result = _evaluate(trained, eval_interval_secs=1)
    assert [step for step, _ in result.evaluations] == [8]


def test_once_is_the_newest(trained, tmp_path):
    result = _evaluate(trained, eval_dir=str(tmp_path / 'new'))
    assert result.evaluations == ((10, result.evaluation),)
    assert result.checkpoint == str(trained / 'model.ckpt-10')
    assert (tmp_path / 'new' / 'model.ckpt-10.json').exists()


def test_a_limit_of_batches(trained, tmp_path):
    result = _evaluate(
        trained,
        eval_dir=str(tmp_path),
        num_eval_batches=3,
        num_gpus=2,
        variable_update='replicated',
    )
    assert result.evaluation.num_images == 3 * 2 * 16


def test_a_damaged_checkpoint_is_passed_over(tmp_path, capsys):
    _run(train_dir=str(tmp_path), save_model_steps=4)
    data = tmp_path / 'model.ckpt-8.data-00000-of-00001'
    data.write_bytes(data.read_bytes()[:1000])
    result = _evaluate(tmp_path, eval_interval_secs=1)
    assert [step for step, _ in result.evaluations] == [10, 4]
    assert 'model.ckpt-8' in capsys.readouterr().err


def test_a_timeout_ends_the_waiting(tmp_path, capsys):
    _run(train_dir=str(tmp_path))
    assert ending.has_ended(str(tmp_path))
    ending.clear(str(tmp_path))
    assert not ending.has_ended(str(tmp_path))
    ending.clear(str(tmp_path))
    result = _evaluate(tmp_path, eval_interval_secs=1, eval_timeout_secs=1)
    assert len(result.evaluations) == 1
    assert 'no new checkpoint' in capsys.readouterr().err


def test_an_evaluator_waits_for_the_training_to_begin(tmp_path):
    folder = tmp_path / 'later'
    told = []
    values = {'eval': True, 'eval_interval_secs': 1, 'train_dir': str(folder)}
    params.await_training(values | {'eval_timeout_secs': 1}, told.append)
    assert len(told) == 1 and str(folder) in told[0]

    def begin():
        folder.mkdir()
        (folder / 'parameters.json').write_text('{"model": "lenet"}')

    timer = threading.Timer(0.5, begin)
    timer.start()
    start = time.monotonic()
    params.await_training(values, told.append)
    timer.join()
    assert 0.4 < time.monotonic() - start < 20
    assert params.inherit_for_eval(values)['model'] == 'lenet'


def _start(*arguments):
    return subprocess.Popen(
        [sys.executable, '-m', 'kbench', '--device=cpu', *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_an_evaluator_beside_a_training(tmp_path):
    """Two processes; checkpoints go while the evaluator may read them."""
    folder = str(tmp_path / 'run')
    evaluator = _start(
        '--eval', '--eval_interval_secs=1', f'--train_dir={folder}'
    )
    training = _start(
        *['--model=lenet', '--data_name=digits', '--batch_size=16'],
        *[
            '--num_batches=1000',
            '--learning_rate=0.01',
            '--num_warmup_batches=0',
        ],
        *['--save_model_steps=20', '--max_ckpts_to_keep=2'],
        f'--train_dir={folder}',
    )
    said, _ = training.communicate(timeout=200)
    assert training.returncode == 0, said
    seen, _ = evaluator.communicate(timeout=100)
    assert evaluator.returncode == 0, seen
    assert 'Traceback' not in seen and 'error' not in seen
    left = checkpoints.all_steps(folder)
    names = os.listdir(tmp_path / 'run' / 'eval')
    steps = [
        _read(tmp_path / 'run' / 'eval' / name)['step']
        for name in names
        if name.startswith('model.ckpt-')
    ]
    assert set(left) <= set(steps)
    assert seen.count('Accuracy @ 1') == len(steps) == len(set(steps))
    assert len(steps) > 2


def test_an_evaluator_ends_on_sigterm(tmp_path):
    _run(train_dir=str(tmp_path))
    os.remove(tmp_path / ending.MARKER)
    process = _start(
        *['--eval', '--eval_interval_secs=100', f'--train_dir={tmp_path}']
    )
    for line in process.stdout:
        if 'waiting for a new checkpoint' in line:
            break
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143


@pytest.mark.parametrize(
    ('mode', 'num_gpus'),
    [('parameter_server', 1), ('replicated', 2), ('independent', 2)],
)
def test_evaluating_in_between_changes_no_loss(mode, num_gpus, tmp_path):
    values = {
        'variable_update': mode,
        'num_gpus': num_gpus,
        'moving_average_decay': 0.9,
    }
    plain = _run(**values)
    result = _run(
        **values,
        train_dir=str(tmp_path),
        eval_during_training_every_n_steps=4,
    )
    assert result.losses == plain.losses
    assert [step for step, _ in result.evaluations] == [4, 8, 10]
    if mode == 'independent':
        # Each device evaluates its share of the images with its own copy.
        return
    # The last one is of the weights that were saved.
    again = _evaluate(tmp_path, eval_dir=str(tmp_path / 'b')).evaluation
    assert again.top_1 == result.evaluation.top_1
    assert again.num_images == result.evaluation.num_images == 355
    assert again.loss == pytest.approx(result.evaluation.loss, rel=1e-5)
    events = event_files.read(tmp_path / 'eval')
    assert ('evaluation/top_1', 8) in events


def test_the_time_of_evaluating_is_not_counted():
    result = _run(eval_during_training_every_n_steps=1, num_batches=6)
    spent = sum(
        found.num_images / found.images_per_sec
        for _, found in result.evaluations
    )
    steps = sum(result.step_times_sec)
    total = 6 * 16 / result.images_per_sec
    assert len(result.evaluations) == 6
    assert total < steps + 0.5 * spent


def test_a_training_ends_when_it_is_good_enough(tmp_path):
    result = _run(
        train_dir=str(tmp_path),
        num_batches=400,
        num_warmup_batches=0,
        eval_during_training_every_n_epochs=0.5,
        stop_at_top_1_accuracy=0.6,
        result_storage=str(tmp_path / 'run.json'),
    )
    every = int(0.5 * 1442 / 16)
    assert result.step % every == 0 and result.step < 400
    assert result.evaluation.top_1 >= 0.6
    assert all(found.top_1 < 0.6 for _, found in result.evaluations[:-1])
    assert result.checkpoint == str(tmp_path / f'model.ckpt-{result.step}')
    assert ending.has_ended(str(tmp_path))
    record = _read(tmp_path / 'run.json')
    assert record['status'] == 'done'
    assert record['evaluations'][-1]['top_1'] == result.evaluation.top_1


@pytest.mark.parametrize(
    ('values', 'parts'),
    [
        ({'eval_interval_secs': 1}, ['eval_interval_secs', '--eval']),
        ({'stop_at_top_1_accuracy': 0.5}, ['eval_during_training']),
        ({'num_eval_batches': 1}, ['num_eval_batches', '--eval']),
        ({'eval_timeout_secs': 1}, ['eval_interval_secs']),
        (
            {'eval_during_training_every_n_steps': 1, 'forward_only': True},
            ['forward_only'],
        ),
        (
            {
                'eval_during_training_every_n_steps': 1,
                'eval_during_training_every_n_epochs': 1.0,
            },
            ['exclude each other'],
        ),
        (
            {'eval_during_training_every_n_steps': 1, 'data_name': 'cifar10'},
            ['real data'],
        ),
    ],
)
def test_refused(values, parts):
    with pytest.raises(kbench.UserError) as caught:
        _run(**values)
    for part in parts:
        assert part in str(caught.value)
