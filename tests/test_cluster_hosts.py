"""Clusters over several hosts: network namespaces, a link that goes down."""

import os
import subprocess
import sys
import time

import pytest
import test_cluster_faults as faults

from kbench import checkpoints

_BRIDGE = 'kbtbr'
_HOSTS = 3


def _ip(*words):
    subprocess.run(['ip', *words], check=True, capture_output=True)


def _remove():
    # Links first: a namespace takes its own with it, but later.
    links = [f'kbt{index}v' for index in range(_HOSTS)] + [_BRIDGE]
    commands = [['ip', 'link', 'del', link] for link in links]
    for index in range(_HOSTS):
        commands.append(['ip', 'netns', 'del', f'kbt{index}'])
    for command in commands:
        subprocess.run(command, check=False, capture_output=True)


@pytest.fixture
def hosts():
    """Three namespaces that reach each other by addresses of their own."""
    if os.geteuid() != 0:
        pytest.skip('needs root, for network namespaces')
    _remove()
    try:
        _ip('link', 'add', _BRIDGE, 'type', 'bridge')
        _ip('link', 'set', _BRIDGE, 'up')
        for index in range(_HOSTS):
            name = f'kbt{index}'
            _ip('netns', 'add', name)
            pair = ['peer', 'name', 'eth0', 'netns', name]
            _ip('link', 'add', f'{name}v', 'type', 'veth', *pair)
            _ip('link', 'set', f'{name}v', 'master', _BRIDGE, 'up')
            inside = ('netns', 'exec', name, 'ip')
            address = f'10.77.0.{index + 1}/24'
            _ip(*inside, 'addr', 'add', address, 'dev', 'eth0')
            _ip(*inside, 'link', 'set', 'eth0', 'up')
            _ip(*inside, 'link', 'set', 'lo', 'up')
    except (OSError, subprocess.CalledProcessError):
        _remove()
        pytest.skip('network namespaces are not permitted here')
    started = []

    def start(host, *flags):
        role = faults._Role(
            ['ip', 'netns', 'exec', f'kbt{host}', sys.executable, '-m']
            + ['kbench', *faults._RUN, *flags]
        )
        started.append(role)
        return role

    yield start
    for role in started:
        role.end()
    _remove()


def _servers(hosts, mode, *flags):
    common = [
        f'--variable_update={mode}',
        '--worker_hosts=10.77.0.1:5000,10.77.0.2:5000',
        '--ps_hosts=10.77.0.3:5000',
        *flags,
    ]
    return [
        hosts(0, '--job_name=worker', '--task_index=0', *common),
        hosts(1, '--job_name=worker', '--task_index=1', *common),
        hosts(2, '--job_name=ps', '--task_index=0', *common),
    ]


@pytest.mark.slow
def test_servers_and_a_worker_that_is_cut_off_for_a_while(hosts, tmp_path):
    roles = _servers(
        hosts,
        'distributed_replicated',
        '--num_batches=300',
        f'--train_dir={tmp_path}',
    )
    roles[0].see(r'^20\t')
    _ip('link', 'set', 'kbt1v', 'down')
    time.sleep(4)
    _ip('link', 'set', 'kbt1v', 'up')
    for role in roles:
        status, text = role.ends()
        assert status == 0, text
    assert checkpoints.all_steps(str(tmp_path))[-1] == 301


@pytest.mark.slow
def test_a_server_is_cut_off(hosts, tmp_path):
    roles = _servers(
        hosts,
        'parameter_server',
        '--num_batches=100000',
        f'--train_dir={tmp_path}',
    )
    roles[0].see(r'^60\t')
    _ip('link', 'set', 'kbt2v', 'down')
    status, text = roles[0].ends(90)
    assert status == 1 and 'ps 0 is lost' in text
    assert 'model.ckpt-' in text
    assert roles[2].ends(90)[0] == 1
    assert roles[1].ends(90)[0] == 1


@pytest.mark.slow
def test_all_reduce_and_a_worker_that_is_cut_off(hosts):
    addresses = ','.join(f'10.77.0.{i + 1}:5000' for i in range(_HOSTS))
    roles = [
        hosts(
            index,
            '--variable_update=distributed_all_reduce',
            '--job_name=worker',
            f'--task_index={index}',
            f'--worker_hosts={addresses}',
            '--num_batches=100000',
            '--collective_timeout_secs=20',
        )
        for index in range(_HOSTS)
    ]
    roles[0].see(r'^60\t')
    _ip('link', 'set', 'kbt2v', 'down')
    for role in roles[:2]:
        status, text = role.ends(100)
        assert status != 0
        assert 'worker 2 at 10.77.0.3:5000 is lost' in text
