"""What checkpoints cost: throughput with and without them, in turns.

    python benchmarks/save_cost.py --rounds=5
    python benchmarks/save_cost.py --rounds=5 --summaries

Each round trains resnet20 twice in this process, with a checkpoint every 20
steps and without, in changing order; the ratio of the medians is what counts.
With --summaries every 20 steps write scalars for TensorBoard too.
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
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        if saves:
            changes = dict(train_dir=folder, save_model_steps=_EVERY)
            if options.summaries:
                changes |= dict(
                    save_summaries_steps=_EVERY, summary_verbosity=1
                )
        result = kbench.run(
            model='resnet20',
            data_name='cifar10',
            optimizer='momentum',
            learning_rate=0.01,
            batch_size=options.batch,
            num_batches=options.steps,
            num_warmup_batches=5,
            device=options.device,
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
    parser.add_argument('--summaries', action='store_true')
    options = parser.parse_args()
    reporting.route_logging()
    logging.getLogger('kbench').setLevel(logging.ERROR)
    found = {False: [], True: []}
    for number in range(options.rounds):
        for saves in (False, True) if number % 2 else (True, False):
            speed, times = _images_per_sec(options, saves)
            found[saves].append(speed)
            sys.stdout.write(
                f'round {number + 1}\t{"with" if saves else "without"}\t'
                f'{speed:.1f} images/s\t{times or ""}\n'
            )
            sys.stdout.flush()
    medians = {saves: statistics.median(found[saves]) for saves in found}
    load = os.getloadavg()[0]
    sys.stdout.write(
        f'medians: {medians[True]:.1f} with, {medians[False]:.1f} without, '
        f'ratio {medians[True] / medians[False]:.3f}; load {load:.1f} on '
        f'{os.cpu_count()} processors\n'
    )


if __name__ == '__main__':
    main()
