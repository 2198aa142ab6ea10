"""Clusters as values: TF_CONFIG, host flags, Slurm, contradictions."""

import json
import socket
import subprocess
import sys
import time

import pytest

import kbench
from kbench import cluster, job

_JOBS = {
    'chief': ['c:1'],
    'ps': ['p:1', 'p:2'],
    'worker': ['w:1', 'w:2', 'w:3'],
}


def _config(jobs=None, **task):
    return json.dumps({'cluster': jobs or _JOBS, 'task': task})


@pytest.mark.parametrize(
    ('kind', 'index', 'job', 'coordinates'),
    [
        ('chief', 0, 'chief', True),
        ('worker', 0, 'worker', False),
        ('worker', 2, 'worker', False),
        ('ps', 1, 'ps', False),
        ('evaluator', 0, 'evaluator', False),
    ],
)
def test_tf_config(kind, index, job, coordinates):
    found = cluster.from_tf_config(_config(type=kind, index=index))
    assert (found.job, found.index) == (job, index)
    assert found.coordinates == coordinates
    assert found.spec() == _JOBS
    if job != 'evaluator':
        assert found.address == _JOBS[job][index]
    assert 'worker 1 at w:2' in found.describe()


def test_a_master_is_a_chief():
    jobs = {'master': ['m:1'], 'worker': ['w:1'], 'ps': ['p:1']}
    found = cluster.from_tf_config(_config(jobs, type='master', index=0))
    assert found.coordinates and found.chief == ('m:1',)


def test_without_a_chief_worker_0_coordinates():
    jobs = {'worker': ['w:1', 'w:2'], 'ps': ['p:1']}
    first, second = (
        cluster.from_tf_config(_config(jobs, type='worker', index=index))
        for index in (0, 1)
    )
    assert first.coordinates and not second.coordinates


def test_all_reduce_counts_a_chief_as_the_first_worker():
    found = cluster.from_tf_config(_config(type='worker', index=1)).as_peers()
    assert found.worker == ('c:1', 'w:1', 'w:2', 'w:3')
    assert (found.name, found.chief, found.ps) == ('worker 2', (), ())
    first = cluster.from_tf_config(_config(type='chief', index=0)).as_peers()
    assert first.name == 'worker 0' and first.coordinates


def _flags(**changes):
    values = {
        'job_name': 'worker',
        'ps_hosts': 'p:1,p:2',
        'worker_hosts': 'w:1,w:2,w:3',
        'controller_host': 'c:1',
        'task_index': 1,
    }
    return cluster.from_hosts(**(values | changes))


def test_flags_and_tf_config_are_two_spellings():
    from_flags = _flags()
    from_environment = cluster.from_tf_config(_config(type='worker', index=1))
    assert from_flags == from_environment
    assert cluster.agree(from_environment, from_flags) == from_flags
    assert cluster.agree(None, from_flags) == from_flags
    assert _flags(job_name='controller', task_index=0).job == 'chief'


def test_nothing_set_is_no_cluster():
    assert cluster.from_tf_config('{}') is None
    empty = {'ps_hosts': '', 'worker_hosts': '', 'controller_host': None}
    assert _flags(job_name='', task_index=0, **empty) is None
    assert cluster.agree(None, None) is None


@pytest.mark.parametrize(
    ('text', 'wanted'),
    [
        ('{"cluster', 'TF_CONFIG is not JSON'),
        ('[]', 'must be a JSON object'),
        ('{"cluster": []}', None),
        ('{"cluster": ["w:1"]}', 'must be JSON objects'),
        (_config(type='worker', index=3), 'from 0 to 2'),
        (_config(type='worker', index=-1), 'from 0 to 2'),
        (_config(type='worker', index='x'), 'must be a number'),
        (_config(type='boss', index=0), "'boss'"),
        (_config(), 'None'),
        (_config({'boss': ['a:1']}, type='worker', index=0), "'boss'"),
        (_config({'worker': 'a:1'}, type='worker', index=0), 'list'),
        (_config({'worker': ['a']}, type='worker', index=0), 'host:port'),
        (_config({'worker': ['a:0']}, type='worker', index=0), 'host:port'),
        (
            _config({'worker': ['a:1', 'a:1']}, type='worker', index=0),
            'a:1 to 2 processes',
        ),
        (
            _config({'chief': ['a:1', 'b:1']}, type='chief', index=0),
            '2 chiefs',
        ),
        (_config({'worker': ['a:1']}, type='ps', index=0), 'list is empty'),
        (
            _config({'chief': ['a:1'], 'master': ['b:1']}, type='chief'),
            'both',
        ),
    ],
)
def test_bad_tf_config(text, wanted):
    if wanted is None:
        assert cluster.from_tf_config(text) is None
        return
    with pytest.raises(cluster.ClusterError, match=wanted) as caught:
        cluster.from_tf_config(text)
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
    ('changes', 'wanted'),
    [
        ({'job_name': ''}, 'need --job_name'),
        ({'worker_hosts': ''}, 'needs --worker_hosts'),
        ({'task_index': 3}, 'from 0 to 2'),
        ({'job_name': 'ps', 'task_index': 2}, 'from 0 to 1'),
        ({'ps_hosts': 'w:1'}, 'w:1 to 2 processes'),
        ({'ps_hosts': 'p'}, "'p'"),
        ({'job_name': 'controller', 'controller_host': None}, 'empty'),
    ],
)
def test_bad_flags(changes, wanted):
    with pytest.raises(cluster.ClusterError, match=wanted):
        _flags(**({'task_index': 0} | changes))


@pytest.mark.parametrize(
    ('changes', 'wanted'),
    [
        ({'worker_hosts': 'w:1,w:9'}, 'worker is w:1,w:2,w:3 there'),
        ({'task_index': 0}, 'index is 1 there and 0 here'),
        ({'job_name': 'ps'}, 'job is worker there and ps here'),
        ({'controller_host': None}, 'chief is c:1 there and empty here'),
    ],
)
def test_contradictions(changes, wanted):
    here = cluster.from_tf_config(_config(type='worker', index=1))
    with pytest.raises(cluster.ClusterError, match=wanted):
        cluster.agree(here, _flags(**changes))


def test_names_that_do_not_resolve_are_listed():
    jobs = {'worker': ['127.0.0.1:1', 'no-such-host.invalid:2']}
    found = cluster.from_tf_config(_config(jobs, type='worker', index=0))
    start = time.monotonic()
    with pytest.raises(cluster.ClusterError, match=r'no-such-host.invalid:2'):
        cluster.check_names(found)
    assert time.monotonic() - start < 10


def test_ports_in_use():
    with socket.create_server(('127.0.0.1', 0)) as taken:
        address = f'127.0.0.1:{taken.getsockname()[1]}'
        jobs = {'worker': [address, '127.0.0.1:1']}
        found = cluster.from_tf_config(_config(jobs, type='worker', index=0))
        with pytest.raises(cluster.ClusterError, match='in use'):
            cluster.check_own_port(found)
    cluster.check_own_port(found)


def _slurm(monkeypatch, procid, hosts='n[1-2]', per_node='2(x2)', tasks=4):
    for name, value in {
        'SLURM_PROCID': procid,
        'SLURM_STEP_NUM_TASKS': tasks,
        'SLURM_STEP_NODELIST': hosts,
        'SLURM_STEP_TASKS_PER_NODE': per_node,
    }.items():
        monkeypatch.setenv(name, str(value))


def test_slurm(monkeypatch):
    _slurm(monkeypatch, 3)
    found = cluster.from_slurm(1)
    assert found.ps == ('n1:8888',)
    assert found.worker == ('n1:8889', 'n2:8888', 'n2:8889')
    assert found.name == 'worker 2'
    with pytest.raises(cluster.ClusterError, match='leaves no worker'):
        cluster.from_slurm(4)


def test_slurm_outside_of_slurm(monkeypatch):
    for name in ('SLURM_STEP_NUM_TASKS', 'SLURM_PROCID'):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(cluster.ClusterError, match='start with srun'):
        cluster.from_slurm(0)


_TWO = {'worker': ['127.0.0.1:1', '127.0.0.1:2']}


def _refused_at_once(flags, environment, wanted):
    """One line, a status other than 0, within ten seconds."""
    start = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, '-m', 'kbench'),
            '--variable_update=distributed_all_reduce',
            *flags,
        ],
        env={'PATH': ''} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert time.monotonic() - start < 10
    assert done.returncode != 0 and done.stdout == ''
    assert wanted in done.stderr and done.stderr.count('\n') == 1


@pytest.mark.parametrize(
    ('tf_config', 'flags', 'wanted'),
    [
        ('{', [], 'not JSON'),
        (_config(_TWO, type='worker', index=2), [], 'from 0 to 1'),
        (_config(_TWO, type='boss', index=0), [], "'boss'"),
        (
            _config({'worker': ['a:1', 'a:1']}, type='worker', index=0),
            [],
            'a:1 to 2 processes',
        ),
        (
            _config(_TWO, type='worker', index=0),
            ['--job_name=worker', '--worker_hosts=127.0.0.1:1,127.0.0.1:3'],
            'contradict each other',
        ),
        (None, ['--worker_hosts=a:1,b:1'], 'need --job_name'),
        (
            None,
            ['--job_name=worker', '--worker_hosts=no.invalid:1,b.invalid:1'],
            'no known address',
        ),
    ],
)
def test_the_command_line_refuses_at_once(tf_config, flags, wanted):
    environment = {'TF_CONFIG': tf_config} if tf_config else {}
    _refused_at_once(flags, environment, wanted)


@pytest.mark.parametrize('job_name', ['ps', 'worker'])
def test_a_port_in_use_is_refused_at_once(job_name):
    with socket.create_server(('127.0.0.1', 0)) as taken:
        address = f'127.0.0.1:{taken.getsockname()[1]}'
        flags = {
            'variable_update': 'parameter_server',
            'job_name': job_name,
            'worker_hosts': '127.0.0.1:1,127.0.0.1:2',
            'ps_hosts': '127.0.0.1:3',
            f'{job_name}_hosts': address,
        }
        _refused_at_once(
            [f'--{name}={value}' for name, value in flags.items()],
            {},
            f'cannot listen at {address}: Address already in use',
        )


@pytest.mark.parametrize(
    ('kind', 'status'),
    [('chief', None), ('worker', 0), ('ps', 0), ('evaluator', None)],
)
def test_one_process_evaluates(kind, status, tmp_path):
    params = kbench.make_params(
        eval=True,
        train_dir=str(tmp_path),
        variable_update='distributed_replicated',
    )
    found = job.find(params, {'TF_CONFIG': _config(type=kind, index=0)})
    assert (found.cluster, found.topology) == (None, job.LOCAL)
    assert found.status == status


def test_the_coordinator_has_an_address_that_others_reach():
    jobs = {'worker': ['w:1', 'w:2'], 'ps': ['p:1']}
    found = cluster.from_tf_config(_config(jobs, type='worker', index=0))
    host, port = found.coordinator_address().split(':')
    assert host == 'w' and 1023 < int(port) < 65536 and port != '1'
    found = cluster.from_tf_config(_config(type='chief', index=0))
    assert found.coordinator_address() == 'c:1'
