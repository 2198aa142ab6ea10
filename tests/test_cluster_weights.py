"""Whole runs of every synchronous mode against one process."""

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


def _cluster(folder, num_batches, mode, *flags, workers=2, ps=2):
    told = _SETTINGS | {
        'variable_update': mode,
        'batch_size': _GLOBAL_BATCH // workers,
        'num_batches': num_batches,
        'train_dir': folder,
    }
    done = subprocess.run(
        [
            *(sys.executable, '-m', 'kbench', 'launch'),
            *(f'--workers={workers}', f'--ps={ps}', '--'),
            *(f'--{name}={value}' for name, value in told.items()),
            *flags,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


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
    divided = '--ps_shard_bytes=20000'
    _cluster(servers, 3, 'parameter_server', divided)
    _check(servers, halfway, 3)
    _alone(servers, 3)
    _check(servers, wanted, 6)
    # Written whole, read in parts.
    _cluster(copies, 3, 'distributed_replicated', divided, workers=1)
    _check(copies, wanted, 6)
    _cluster(peers, 6, 'distributed_all_reduce', ps=0)
    _check(peers, wanted, 6)
