"""Cluster modes against plain NumPy, with real processes."""

import itertools
import json
import os
import pathlib
import subprocess
import sys

import cluster_oracle
import numpy as np
import pytest
import test_oracle

from kbench.commands import launch

_HERE = pathlib.Path(__file__).parent
_OPTIMIZERS = ('sgd', 'momentum')


def expected(optimizer, staged=False):
    """Losses and weights of synchronous SGD over the whole batch."""
    weights, slot, losses = np.array([1.0, 2.0]), {}, []
    before = weights.copy()
    for mean in cluster_oracle.images(test_oracle.STEPS).mean(axis=1):
        used = before if staged else weights.copy()
        before = weights.copy()
        losses.append(mean * used.prod())
        test_oracle._update(optimizer, weights, mean * used[::-1], slot)
    return losses, weights


@pytest.fixture
def start():
    """Starts processes, and ends each by its own id."""
    started = []

    def run(*command):
        environ = {
            **os.environ,
            'PYTHONPATH': os.pathsep.join([str(_HERE.parent), str(_HERE)]),
        }
        process = subprocess.Popen(
            [sys.executable, *command],
            stdout=subprocess.PIPE,
            stdin=subprocess.PIPE,
            text=True,
            env=environ,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _script(**told):
    return str(_HERE / 'cluster_oracle.py'), json.dumps(told)


def _lines(process, timeout=200):
    text, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0
    return [json.loads(line) for line in text.splitlines()]


def _cases():
    """Kind of copies x workers x servers x optimizers; devices at the end."""
    whole = itertools.product(
        ('plain', 'refresh'), (1, 2, 3), (1, 2), _OPTIMIZERS
    )
    rows = [(kind, w, p, o, 1) for kind, w, p, o in whole]
    rows += [('plain', 3, 2, 'momentum', 2), ('refresh', 2, 1, 'sgd', 2)]
    rows += [('staged', w, 2, o, 1) for w in (1, 2) for o in _OPTIMIZERS]
    rows += [('asynchronous', 3, 1, 'sgd', 1)]
    names = ('kind', 'workers', 'ps', 'optimizer', 'devices')
    return [dict(zip(names, row, strict=True)) for row in rows]


@pytest.mark.slow
def test_parameter_servers(start):
    addresses = launch.free_addresses(5)
    jobs = {'worker': addresses[:3], 'ps': addresses[3:]}
    code = 'from kbench import serve; serve.main()'
    roles = []
    for job, listed in jobs.items():
        for index in range(len(listed)):
            told = {
                'cluster': {'chief': [], **jobs, 'job': job, 'index': index},
                'settings': {
                    'num_devices': 2,
                    'kind': 'cpu',
                    'gpus': '',
                    'timeout_secs': 200,
                },
            }
            roles.append(start('-c', code, json.dumps(told)))
    chief = start(*_script(job='chief', addresses=jobs, cases=_cases()))
    found = _lines(chief)
    assert len(found) == len(_cases())
    for row in found:
        what = {name: row[name] for name in _cases()[0]}
        assert row['steps'] == test_oracle.STEPS, what
        if row['kind'] == 'asynchronous':
            assert np.isfinite(row['losses']).all()
            continue
        losses, weights = expected(row['optimizer'], row['kind'] == 'staged')
        np.testing.assert_allclose(
            row['losses'], losses, rtol=3e-6, err_msg=str(what)
        )
        np.testing.assert_allclose(
            row['weights'], weights, rtol=3e-6, err_msg=str(what)
        )
        assert min(row['bytes']) > 0 and len(row['bytes']) == row['ps']
    # A server's standard input is what keeps it: it must end before that.
    for role in roles:
        assert role.wait(20) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ('workers', 'devices'), [(1, 1), (2, 1), (3, 1), (2, 2)]
)
def test_all_reduce(start, workers, devices):
    addresses = {'worker': launch.free_addresses(workers)}
    cases = [{'optimizer': name, 'devices': devices} for name in _OPTIMIZERS]
    processes = [
        start(
            *_script(
                job='worker', index=index, addresses=addresses, cases=cases
            )
        )
        for index in range(workers)
    ]
    for process in processes:
        for row in _lines(process):
            losses, weights = expected(row['optimizer'])
            np.testing.assert_allclose(row['losses'], losses, rtol=3e-6)
            np.testing.assert_allclose(row['weights'], weights, rtol=3e-6)
            assert row['steps'] == test_oracle.STEPS
