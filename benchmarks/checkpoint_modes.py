"""Every mode saves, every mode reads: the whole table.

    python benchmarks/checkpoint_modes.py
    python benchmarks/checkpoint_modes.py --only='replicated x2,all-reduce'

Each mode trains a small network with batch norm on digits, in float16 with a
dynamic loss scale, momentum and moving averages, and saves. Each mode of one
process evaluates each of these checkpoints: the same images have to be right.
Each mode goes on from each of them for a step with rate 0: weights stay the
same bits, averages move as they must, counts and scale go on.
"""

import argparse
import contextlib
import io
import logging
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import kbench
from kbench import averages, checkpoints, reporting, runtime

_STEPS = 80
_DECAY = 0.9
_COMMON = dict(
    model='tiny_net:build',
    data_name='digits',
    device='cpu',
    num_warmup_batches=0,
    optimizer='momentum',
    moving_average_decay=_DECAY,
    use_fp16=True,
    fp16_enable_auto_loss_scale=True,
    fp16_loss_scale=1024.0,
)
# Name: devices of a process, variable_update, roles to launch, other flags.
_MODES = {
    f'{mode} x{count}': (count, mode, (), {})
    for mode in ('parameter_server', 'replicated', 'independent')
    for count in (1, 2)
} | {
    'ps sync': (1, 'parameter_server', ('--workers=2', '--ps=1'), {}),
    'ps async': (
        1,
        'parameter_server',
        ('--workers=2', '--ps=1'),
        {'cross_replica_sync': False},
    ),
    'ps copies': (
        1,
        'distributed_replicated',
        ('--workers=2', '--ps=1'),
        {},
    ),
    'all-reduce': (1, 'distributed_all_reduce', ('--workers=2',), {}),
}
# Who reads has one worker where two wrote, if the mode can do with one.
_FEWER = {('--workers=2', '--ps=1'): ('--workers=1', '--ps=1')}


def _train(name, other_roles=None, **values):
    count, mode, roles, others = _MODES[name]
    roles = (other_roles or {}).get(roles, roles)
    values = _COMMON | dict(num_gpus=count, variable_update=mode) | values
    values |= others
    if not roles:
        with contextlib.redirect_stdout(io.StringIO()):
            kbench.run(**values)
        return
    done = subprocess.run(
        [
            *(sys.executable, '-m', 'kbench', 'launch', *roles, '--'),
            *(f'--{flag}={value}' for flag, value in values.items()),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f'{name} failed:\n{done.stdout}{done.stderr}')


def _evaluate(name, folder):
    count, mode, _, _ = _MODES[name]
    with contextlib.redirect_stdout(io.StringIO()):
        return kbench.run(
            eval=True,
            train_dir=str(folder),
            eval_dir=str(folder / f'eval-{name}'),
            device='cpu',
            num_gpus=count,
            variable_update=mode,
            batch_size=64,
        ).evaluation


def _newest(folder):
    return checkpoints.load(checkpoints.latest(str(folder)))


def _is_weight(name):
    return name.endswith(('/kernel', '/bias', '/gamma', '/beta'))


def _differences(before, after):
    """What a step with rate 0 did that it must not."""
    found = []
    if before.keys() != after.keys():
        return [f'names {before.keys() ^ after.keys()}']
    if after['global_step'] != before['global_step'] + 1:
        found.append('global_step')
    if after['batches_seen'] != before['batches_seen'] + 1:
        found.append('batches_seen')
    if after['loss_scale'] != before['loss_scale']:
        found.append('loss_scale')
    if after['good_steps'] != before['good_steps'] + 1:
        found.append('good_steps')
    step = before['global_step']
    decay = min(_DECAY, (1 + step) / (10 + step))
    for name in filter(_is_weight, before):
        if not np.array_equal(before[name], after[name]):
            found.append(name)
        average = averages.average_name(name)
        moved = before[average] - (1 - decay) * (before[average] - before[name])
        if not np.allclose(after[average], moved, rtol=1e-5, atol=1e-7):
            found.append(average)
        if not np.isfinite(after[f'{name}/Momentum']).all():
            found.append(f'{name}/Momentum')
    return found


def _check_evaluations(writer, readers, folder):
    found = {
        name: _evaluate(name, folder) for name in readers if not _MODES[name][2]
    }
    tops = {(one.top_1, one.top_5, one.num_images) for one in found.values()}
    if len(tops) != 1:
        raise SystemExit(f'{writer}: evaluations differ: {found}')
    losses = [one.loss for one in found.values()]
    sys.stdout.write(
        f'{writer}: evaluated in {len(found)} modes: {tops.pop()}, losses '
        f'{min(losses):.6f} to {max(losses):.6f}\n'
    )


def main() -> None:
    """Writes with every mode, reads with every mode."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--only', default='', help='writers and readers')
    parser.add_argument('--readers', default='', help='not all of them')
    options = parser.parse_args()
    names = options.only.split(',') if options.only else list(_MODES)
    readers = options.readers.split(',') if options.readers else names
    os.chdir(pathlib.Path(__file__).parent)
    reporting.route_logging()
    logging.getLogger('kbench').setLevel(logging.ERROR)
    # Before the first run: later the devices of the process are fixed.
    runtime.set_up_devices('cpu', 2)
    good = 0
    with tempfile.TemporaryDirectory() as root:
        folders = {name: pathlib.Path(root) / name for name in names}
        for writer, folder in folders.items():
            _train(
                writer,
                num_batches=_STEPS,
                train_dir=str(folder),
                batch_size=8,
                learning_rate=0.01,
            )
            _check_evaluations(writer, names, folder)
        # Those of one process first: they are quick.
        for reader in sorted(readers, key=lambda name: bool(_MODES[name][2])):
            for writer, folder in folders.items():
                to = pathlib.Path(root) / f'{writer} to {reader}'
                _train(
                    reader,
                    _FEWER,
                    num_batches=1,
                    checkpoint=checkpoints.latest(str(folder)),
                    train_dir=str(to),
                    batch_size=8,
                    learning_rate=0.0,
                )
                wrong = _differences(_newest(folder), _newest(to))
                good += not wrong
                sys.stdout.write(f'{writer} -> {reader}: {wrong or "same"}\n')
                sys.stdout.flush()
    pairs = len(names) * len(readers)
    sys.stdout.write(f'{good} of {pairs} pairs are right\n')
    raise SystemExit(good != pairs)


if __name__ == '__main__':
    main()
