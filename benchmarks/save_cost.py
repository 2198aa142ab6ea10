"""What checkpoints and summaries cost: throughput with and without, in turns.

    python benchmarks/save_cost.py --rounds=5
    python benchmarks/save_cost.py --rounds=5 --verbosity=1
    python benchmarks/save_cost.py --rounds=5 --verbosity=3 --no-checkpoints

Each round trains resnet20 twice in this process, with a checkpoint every 20
steps and without, in changing order; the median of the ratios of the rounds
is what counts. --verbosity writes summaries for TensorBoard every 20 steps
too. The rates are those of the whole timed run.
"""

import argparse
import contextlib
import io
import logging
import os
import statistics
import sys
import tempfile

import kbench
from kbench import reporting

_EVERY = 20


def _images_per_sec(options, saves):
    """Trains once; returns images per second, and what the saving cost."""
    changes = {}
    if saves and options.checkpoints:
        changes['save_model_steps'] = _EVERY
    if saves and options.verbosity:
        changes['summary_verbosity'] = options.verbosity
        changes['save_summaries_steps'] = _EVERY
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        result = kbench.run(
            model='resnet20',
            data_name='cifar10',
            optimizer='momentum',
            learning_rate=0.01,
            batch_size=options.batch,
            num_batches=options.steps,
            num_warmup_batches=5,
            device=options.device,
            train_dir=folder if saves else None,
            **changes,
        )
    return result.images_per_sec, result.saves


def main() -> None:
    """Measures, and prints a line per training."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--steps', type=int, default=100)
    parser.add_argument('--batch', type=int, default=32)
    parser.add_argument('--device', default='cpu')
    parser.add_argument('--verbosity', type=int, default=0)
    parser.add_argument(
        '--checkpoints', action=argparse.BooleanOptionalAction, default=True
    )
    options = parser.parse_args()
    reporting.route_logging()
    logging.getLogger('kbench').setLevel(logging.ERROR)
    ratios = []
    for number in range(options.rounds):
        speeds = {}
        for saves in (False, True) if number % 2 else (True, False):
            speeds[saves], times = _images_per_sec(options, saves)
            if times:
                sys.stdout.write(f'{times}\n')
        ratios.append(speeds[True] / speeds[False])
        sys.stdout.write(
            f'round {number + 1}\t{speeds[True]:.1f} images/s with, '
            f'{speeds[False]:.1f} without\tratio {ratios[-1]:.3f}\n'
        )
        sys.stdout.flush()
    sys.stdout.write(
        f'median ratio {statistics.median(ratios):.3f}; load '
        f'{os.getloadavg()[0]:.1f} on {os.cpu_count()} processors\n'
    )


if __name__ == '__main__':
    main()
