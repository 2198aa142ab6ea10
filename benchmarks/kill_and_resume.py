"""Kills a training at random moments, resumes it, and compares the weights.

    python benchmarks/kill_and_resume.py --kills=30

One training on digits in TFRecords runs through. The same one, saving every
second, is ended by SIGKILL at random moments, in its start-up too, and
started again each time. At the end both have to hold the same bits.
"""

import argparse
import os
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

import numpy as np

from kbench import checkpoints

_RESUMED = re.compile(r'resuming from \S+ at step (\d+)')


def _command(options, data, folder):
    return [
        *(sys.executable, '-m', 'kbench', f'--model={options.model}'),
        *(f'--data_dir={data}', '--device=cpu', '--batch_size=8'),
        *('--num_warmup_batches=0', f'--num_epochs={options.epochs}'),
        *('--optimizer=momentum', '--learning_rate=0.002'),
        *('--moving_average_decay=0.9', f'--train_dir={folder}'),
        *(f'--save_model_secs={options.save_secs}', '--display_every=1000'),
    ]


def _run_through(command):
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f'the training failed:\n{done.stderr}')
    return time.monotonic() - start, done.stderr


def _first_step(process):
    """Waits for the line of the first step; False: there was none."""
    return any(line.startswith('1\t') for line in process.stdout)


def _kill_once(command, seconds, trains, folder):
    """Starts, and kills after so many seconds.

    Args:
        command: of the training.
        seconds: from the start, or from the first step on.
        trains: whether from the first step on.
        folder: of the checkpoints.

    Returns:
        Whether it had ended by itself, and the step that it resumed at.
    """
    before = checkpoints.latest(str(folder))
    with tempfile.TemporaryFile('w+') as log:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True
        )
        if trains:
            _first_step(process)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            status = None
            process.kill()
            process.wait()
        process.stdout.close()
        log.seek(0)
        text = log.read()
    if status:
        raise SystemExit(f'a restart failed with status {status}:\n{text}')
    match = _RESUMED.search(text)
    resumed = int(match.group(1)) if match else None
    if resumed is not None and resumed != checkpoints.step_of(before or ''):
        raise SystemExit(f'resumed at step {resumed}, {before} was there')
    if trains and before and resumed is None:
        raise SystemExit(f'did not resume from {before}:\n{text}')
    return status == 0, resumed


def _compare(one, other):
    """How many arrays two folders end with; raises where a bit differs."""
    first, second = (
        checkpoints.load(checkpoints.latest(str(folder)))
        for folder in (one, other)
    )
    if first.keys() != second.keys():
        raise SystemExit(f'names differ: {first.keys() ^ second.keys()}')
    for name, value in first.items():
        if not np.array_equal(value, second[name], equal_nan=True):
            raise SystemExit(f'{name} differs')
    return len(first), int(first['global_step'])


def main() -> None:
    """Runs through, kills and resumes, compares."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--kills', type=int, default=30)
    parser.add_argument('--model', default='lenet')
    parser.add_argument('--epochs', type=float, default=25.0)
    parser.add_argument('--save_secs', type=int, default=1)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument(
        '--longest',
        type=float,
        default=5.0,
        help='seconds up to the latest kill',
    )
    parser.add_argument(
        '--fewer',
        action='store_true',
        help='be content where a fast machine trains to the end before',
    )
    options = parser.parse_args()
    os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as root:
        root = pathlib.Path(root)
        data, whole, killed = root / 'data', root / 'whole', root / 'killed'
        subprocess.run(
            [
                *(sys.executable, '-m', 'kbench', 'prepare'),
                *('--data_name=digits', f'--output_dir={data}'),
            ],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        seconds, text = _run_through(_command(options, data, whole))
        sys.stdout.write(f'uninterrupted: {seconds:.0f} s\n')
        sys.stdout.write(text.splitlines()[-1] + '\n')
        command = _command(options, data, killed)
        done = partial = 0
        while done < options.kills:
            # One in five dies before it trains.
            trains = draw.random() > 0.2
            moment = draw.uniform(0.0, options.longest)
            ended, resumed = _kill_once(command, moment, trains, killed)
            if ended and options.fewer:
                break
            if ended:
                raise SystemExit(f'it ended after {done} kills: more --epochs')
            done += 1
            left = len(list(killed.glob('*.partial-*')))
            partial += bool(left)
            newest = checkpoints.latest(str(killed)) or 'none'
            sys.stdout.write(
                f'kill {done}, {moment:.2f} s after '
                f'{"the first step" if trains else "the start"}: resumed at '
                f'{resumed}, newest now {pathlib.Path(newest).name}, '
                f'half written: {left}\n'
            )
            sys.stdout.flush()
        _, text = _run_through(command)
        match = _RESUMED.search(text)
        sys.stdout.write(f'last start: {match[0] if match else "anew"}\n')
        arrays, steps = _compare(whole, killed)
    sys.stdout.write(
        f'{done} kills, {partial} in the middle of a writing: {arrays} arrays '
        f'after {steps} steps are the same bit for bit\n'
    )


if __name__ == '__main__':
    main()
