"""Whole runs of every synchronous mode against one process."""

import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

import kbench
from kbench import checkpoints

_GLOBAL_BATCH = 8
# Without batch norm: the same global batch gives the same weights.
_SETTINGS = {
    'model': 'trivial',
    'data_name': 'cifar10',
    'device': 'cpu',
    'optimizer': 'momentum',
    'learning_rate': 0.01,
    'moving_average_decay': 0.9,
    'num_warmup_batches': 0,
}


def _alone(folder, num_batches):
    kbench.run(
        **_SETTINGS,
        batch_size=_GLOBAL_BATCH,
        num_batches=num_batches,
        train_dir=str(folder),
    )


def _launch(workers, ps, flags):
    done = subprocess.run(
        [
            *(sys.executable, '-m', 'kbench', 'launch'),
            *(f'--workers={workers}', f'--ps={ps}', '--'),
            *(f'--{name}={value}' for name, value in flags.items()),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def _cluster(folder, num_batches, mode, workers=2, ps=2, **more):
    flags = _SETTINGS | {
        'variable_update': mode,
        'batch_size': _GLOBAL_BATCH // workers,
        'num_batches': num_batches,
        'train_dir': folder,
    }
    return _launch(workers, ps, flags | more)[1]


def _check(folder, wanted, step):
    path = checkpoints.latest(str(folder))
    values = checkpoints.load(path)
    assert values.keys() == wanted.keys()
    assert int(values['global_step']) == step
    # Into how many parts the data was cut is no weight.
    for name in wanted.keys() - {'data_parts'}:
        np.testing.assert_allclose(
            values[name], wanted[name], rtol=2e-5, atol=2e-7, err_msg=name
        )


@pytest.mark.slow
def test_same_weights_in_every_mode_also_over_checkpoints(tmp_path):
    """Three steps, a checkpoint, three more, here and there."""
    alone, servers, copies, peers = (
        tmp_path / name for name in ('alone', 'servers', 'copies', 'peers')
    )
    for folder in (alone, servers, copies, peers):
        folder.mkdir()
    _alone(alone, 3)
    halfway = checkpoints.load(checkpoints.latest(str(alone)))
    shutil.copytree(alone, copies, dirs_exist_ok=True)
    _alone(alone, 3)
    wanted = checkpoints.load(checkpoints.latest(str(alone)))
    # Written in parts, read whole.
    text = _cluster(servers, 3, 'parameter_server', ps_shard_bytes=20000)
    shares = re.search(r'on each server: ([\d.]+), ([\d.]+)\n', text)
    one, other = map(float, shares.groups())
    assert 0.8 < one / other < 1.25
    _check(servers, halfway, 3)
    _alone(servers, 3)
    _check(servers, wanted, 6)
    # Written whole, read in parts.
    _cluster(
        copies, 3, 'distributed_replicated', workers=1, ps_shard_bytes=20000
    )
    _check(copies, wanted, 6)
    _cluster(peers, 6, 'distributed_all_reduce', ps=0)
    _check(peers, wanted, 6)


@pytest.mark.slow
def test_inference_and_evaluation(tmp_path):
    settings = {'model': 'lenet', 'data_name': 'digits', 'device': 'cpu'}
    kbench.run(
        **settings,
        num_batches=5,
        num_warmup_batches=0,
        train_dir=str(tmp_path),
    )
    told = settings | {'eval': True, 'train_dir': str(tmp_path)}
    alone = kbench.run(**told).evaluation
    mode = {'variable_update': 'distributed_replicated'}
    text, _ = _launch(2, 1, told | mode)
    counted = re.search(r'@ 1 = (\S+) .*\[(\d+) examples\]', text)
    assert float(counted.group(1)) == pytest.approx(alone.top_1, abs=1e-4)
    assert int(counted.group(2)) == alone.num_images
    # Synthetic images are the same however they are cut.
    told = _SETTINGS | {'forward_only': True, 'num_batches': 3}
    alone = kbench.run(**told, batch_size=4).losses[-1]
    text, _ = _launch(2, 1, told | mode | {'batch_size': 2})
    shown = re.search(r'\n\[worker 0\] 1\timages.*\t(\S+)\n', text)
    assert float(shown.group(1)) == pytest.approx(alone, abs=6e-4)
