"""Bytes per step that cross the network in the modes with servers.

    python benchmarks/cluster_traffic.py --model=resnet20

Two workers and a parameter server run in network namespaces of their own, so
it needs root. What the interface of the server has counted after step 20 and
after step 120 is compared. Prints bytes per step out of the server and into
it, per worker, and how that relates to the bytes of the weights.
"""

import argparse
import contextlib
import os
import pathlib
import subprocess
import sys

_BRIDGE = 'kbnbr'
_SERVER = 2
_FIRST, _LAST = 20, 120


def _ip(*words, check=True):
    subprocess.run(['ip', *words], check=check, capture_output=True)


def _remove():
    for link in [f'kbn{index}v' for index in range(3)] + [_BRIDGE]:
        _ip('link', 'del', link, check=False)
    for index in range(3):
        _ip('netns', 'del', f'kbn{index}', check=False)


@contextlib.contextmanager
def _hosts():
    _remove()
    try:
        _ip('link', 'add', _BRIDGE, 'type', 'bridge')
        _ip('link', 'set', _BRIDGE, 'up')
        for index in range(3):
            name = f'kbn{index}'
            _ip('netns', 'add', name)
            pair = ('peer', 'name', 'eth0', 'netns', name)
            _ip('link', 'add', f'{name}v', 'type', 'veth', *pair)
            _ip('link', 'set', f'{name}v', 'master', _BRIDGE, 'up')
            inside = ('netns', 'exec', name, 'ip')
            address = f'10.78.0.{index + 1}/24'
            _ip(*inside, 'addr', 'add', address, 'dev', 'eth0')
            _ip(*inside, 'link', 'set', 'eth0', 'up')
            _ip(*inside, 'link', 'set', 'lo', 'up')
        yield
    finally:
        _remove()


def _counted():
    """Bytes out of the server's host, and into it."""
    folder = pathlib.Path(f'/sys/class/net/kbn{_SERVER}v/statistics')
    return [
        int((folder / name).read_text()) for name in ('rx_bytes', 'tx_bytes')
    ]


def _measure(mode, model, flags):
    common = [
        *(sys.executable, '-m', 'kbench'),
        f'--variable_update={mode}',
        f'--model={model}',
        '--data_name=cifar10',
        '--device=cpu',
        '--batch_size=4',
        '--display_every=20',
        f'--num_batches={_LAST}',
        '--worker_hosts=10.78.0.1:5000,10.78.0.2:5000',
        '--ps_hosts=10.78.0.3:5000',
        *flags,
    ]
    roles = [('worker', 0), ('worker', 1), ('ps', 0)]
    processes = [
        subprocess.Popen(
            ['ip', 'netns', 'exec', f'kbn{host}', *common]
            + [f'--job_name={job}', f'--task_index={index}'],
            stdout=subprocess.PIPE if host == 0 else subprocess.DEVNULL,
            stderr=None if host == 0 else subprocess.DEVNULL,
            text=True,
            env={**os.environ, 'PYTHONUNBUFFERED': '1'},
        )
        for host, (job, index) in enumerate(roles)
    ]
    seen = {}
    for line in processes[0].stdout:
        step = line.partition('\t')[0]
        if step in (str(_FIRST), str(_LAST)):
            seen[step] = _counted()
    for process in processes:
        process.wait()
    steps = _LAST - _FIRST
    return [
        (last - first) / steps / 2
        for first, last in zip(*seen.values(), strict=True)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--model', default='resnet20')
    options, flags = parser.parse_known_args()
    sys.stdout.write('mode\tMB out per worker\tMB in per worker\n')
    with _hosts():
        for mode in ('parameter_server', 'distributed_replicated'):
            out, into = _measure(mode, options.model, flags)
            sys.stdout.write(f'{mode}\t{out / 1e6:.3f}\t{into / 1e6:.3f}\n')


if __name__ == '__main__':
    main()
