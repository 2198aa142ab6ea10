"""The record of a run: where it goes, what it says, whatever ends the run."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading

import numpy as np
import pytest

import kbench
from kbench import errors, journal, record, results, serve, throughput
from kbench.params import table

RECORD = {
    'started': '2026-01-01T00:00:00.000+00:00',
    'host': {'name': 'h'},
    'status': 'done',
    'mode': 'training',
    'images_per_sec': 12.5,
    'parameters': {'model': 'lenet', 'variable_update': 'replicated'},
    'losses': [1.0, float('nan'), float('inf')],
}


def _run(**values):
    defaults = {
        'model': 'trivial',
        'data_name': 'cifar10',
        'device': 'cpu',
        'num_batches': 4,
        'num_warmup_batches': 1,
        'batch_size': 2,
        'learning_rate': 0.001,
    }
    return kbench.run(**(defaults | values))


def _read(path):
    with open(path, encoding='utf-8') as file:
        return json.load(file)


def test_a_file_holds_the_last_record(tmp_path):
    path = str(tmp_path / 'new' / 'run.json')
    store = results.create(path)
    for number in (1, 2):
        store.write(RECORD | {'number': number})
    assert _read(path)['number'] == 2
    assert _read(path)['losses'] == [1.0, None, None]
    assert os.listdir(tmp_path / 'new') == ['run.json']


def test_lines_are_added_by_many_at_once(tmp_path):
    path = str(tmp_path / 'runs.jsonl')
    # What a run that was killed while it wrote may have left.
    (tmp_path / 'runs.jsonl').write_text('{"half": ')
    large = RECORD | {'step_times_sec': [0.1] * 20_000}

    def add(number):
        store = results.create(path)
        for _ in range(5):
            store.write(large | {'number': number})

    threads = [threading.Thread(target=add, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = (tmp_path / 'runs.jsonl').read_text().splitlines()
    assert lines[0] == '{"half": ' and len(lines) == 21
    numbers = sorted(json.loads(line)['number'] for line in lines[1:])
    assert numbers == sorted(list(range(4)) * 5)


def test_a_database_takes_rows(tmp_path):
    url = f'sqlite:///{tmp_path}/runs.db'
    results.create(url).write(RECORD)
    results.create(url).write(RECORD | {'status': 'failed'})
    connection = sqlite3.connect(tmp_path / 'runs.db')
    rows = connection.execute(
        f'select id, status, model, images_per_sec, record from {results.TABLE}'
    ).fetchall()
    connection.close()
    assert [row[:4] for row in rows] == [
        (1, 'done', 'lenet', 12.5),
        (2, 'failed', 'lenet', 12.5),
    ]
    assert json.loads(rows[0][4])['losses'] == [1.0, None, None]


@pytest.mark.parametrize(
    ('place', 'parts'),
    [
        ('/proc/nothing/run.json', ['/proc/nothing/run.json']),
        ('{tmp}/folder.json', ['folder.json', 'folder']),
        ('{tmp}/folder.jsonl', ['folder.jsonl']),
        ('sqlite:////proc/nothing/x.db', ['sqlite:////proc', 'unable']),
        ('nosuch://user:secret@host/db', ['nosuch://user:***@host/db']),
        ('postgresql+nosuch://host/db', ['postgresql+nosuch']),
    ],
)
def test_unwritable_places_are_refused(place, parts, tmp_path):
    for name in ('folder.json', 'folder.jsonl'):
        (tmp_path / name).mkdir()
    with pytest.raises(results.ResultError) as caught:
        results.create(place.format(tmp=tmp_path))
    text = str(caught.value)
    assert '\n' not in text and 'secret' not in text
    for part in parts:
        assert part in text


@pytest.mark.parametrize('place', ['runs.csv', 'cbuild_benchmark_datastore'])
def test_other_places_are_no_parameter(place):
    with pytest.raises(kbench.UserError, match=r'\.json or \.jsonl'):
        kbench.make_params(result_storage=place)


def _head():
    """The commit that git tells; None where this is no checkout."""
    done = subprocess.run(
        ['git', 'rev-parse', 'HEAD'],
        cwd=os.path.dirname(kbench.__file__),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or None


def test_the_record_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv('NCCL_DEBUG', 'WARN')
    path = str(tmp_path / 'run.json')
    result = _run(result_storage=path, num_gpus=2, print_training_accuracy=True)
    found = _read(path)
    assert found['status'] == 'done' and found['reason'] is None
    assert found['mode'] == 'training'
    assert found['images_per_sec'] == result.images_per_sec
    assert found['step_times_sec'] == list(result.step_times_sec)
    assert found['losses'] == list(result.losses)
    assert found['top_1'] == list(result.top_1)
    assert len(found['input_wait_sec']) == 4
    times = np.array(result.step_times_sec)
    summary = found['step_time_sec']
    assert summary['mean'] == pytest.approx(times.mean())
    assert summary['median'] == summary['p50'] == np.median(times)
    assert summary['p90'] == pytest.approx(np.percentile(times, 90))
    assert summary['p99'] == pytest.approx(np.percentile(times, 99))
    speed = throughput.measure(result.step_times_sec, 4)
    assert found['images_per_sec_jitter'] == speed.jitter
    assert found['images_per_sec_standard_error'] == speed.standard_error
    assert found['parameters'].keys() == table.TABLE.keys()
    assert found['parameters']['num_gpus'] == 2
    assert found['global_batch_size'] == 4
    assert found['devices'] == ['/cpu:0', '/cpu:1']
    assert found['versions'].keys() >= {'python', 'tensorflow', 'keras'}
    assert found['hardware']['usable_processors'] >= 1
    assert found['environment']['NCCL_DEBUG'] == 'WARN'
    assert found['threads'].keys() == {'intra_op', 'inter_op'}
    assert found['host']['name']
    assert (found['commit'] or {}).get('id') == _head()
    assert found['skipped_steps'] == 0 and found['skipped_images'] == 0
    phases = found['start_up_sec']
    assert list(phases) == [
        *['process', 'import_tensorflow', 'devices', 'data', 'model'],
        *['variables', 'first_step', 'warm_up'],
    ]
    assert all(seconds >= 0 for seconds in phases.values())


def test_a_failed_run_says_what_it_measured(tmp_path):
    path = str(tmp_path / 'run.json')
    with pytest.raises(kbench.UserError):
        _run(
            result_storage=path,
            learning_rate=1e38,
            stop_on_nan=True,
            num_batches=30,
            num_warmup_batches=0,
        )
    found = _read(path)
    assert found['status'] == 'failed' and 'the loss is' in found['reason']
    assert 1 <= found['steps_timed'] < 30
    assert found['losses'][0] > 0
    assert found['first_bad_step'] == found['steps_timed']


def test_a_run_that_fails_before_tensorflow_is_recorded(tmp_path):
    path = str(tmp_path / 'run.jsonl')
    for _ in range(2):
        with pytest.raises(kbench.UserError):
            _run(
                result_storage=path,
                data_dir=str(tmp_path),
                data_name=None,
                eval=True,
                train_dir=str(tmp_path / 'absent'),
            )
    lines = (tmp_path / 'run.jsonl').read_text().splitlines()
    assert [json.loads(line)['status'] for line in lines] == ['failed'] * 2
    assert json.loads(lines[0])['mode'] == 'evaluation'


@pytest.mark.parametrize(
    ('error', 'status'),
    [
        (None, 'done'),
        (errors.Preempted('x'), 'preempted'),
        (kbench.params_lib.ParamsError('x'), 'refused'),
        (errors.UserError('x'), 'failed'),
        (KeyboardInterrupt(), 'interrupted'),
        (errors.Interrupted('x'), 'interrupted'),
        (ZeroDivisionError('x'), 'crashed'),
    ],
)
def test_outcomes(error, status):
    assert record.outcome(error)[0] == status


def test_sigterm_is_recorded(tmp_path):
    """A process that is asked to end, while it trains."""
    path = tmp_path / 'run.json'
    process = subprocess.Popen(
        [
            *[sys.executable, '-m', 'kbench', '--model=trivial'],
            *['--data_name=cifar10', '--device=cpu', '--batch_size=2'],
            *['--num_batches=1000000', '--learning_rate=0'],
            *['--display_every=5', f'--result_storage={path}'],
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        if line.startswith('5\t'):
            break
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 143
    found = _read(path)
    assert found['status'] == 'preempted'
    assert 'SIGTERM' in found['reason']
    assert found['steps_timed'] == len(found['losses']) >= 5
    assert found['images_per_sec'] > 0


def test_without_sqlalchemy_a_database_is_refused(tmp_path):
    code = (
        'import sys; sys.modules["sqlalchemy"] = None; '
        'from kbench.__main__ import main; '
        f'status = main(["--result_storage=sqlite:///{tmp_path}/x.db"]); '
        'sys.exit(99 if "tensorflow" in sys.modules else status)'
    )
    done = subprocess.run(
        [sys.executable, '-c', code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert 'pip install "kbench[database]"' in done.stderr


def test_a_thread_that_ends_the_process_is_recorded(tmp_path):
    """What a lost parameter server does: no exception tells of it."""
    path = str(tmp_path / 'run.json')
    params = kbench.make_params(result_storage=path)
    with record.kept(params, journal.Journal()):
        (tell,) = serve.before_leaving
        tell('ps 0 is lost')
    assert serve.before_leaving == []
    found = _read(path)
    assert found['status'] == 'failed' and found['reason'] == 'ps 0 is lost'
