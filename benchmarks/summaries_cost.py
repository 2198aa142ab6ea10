"""What summaries cost: throughput with and without them, in turns.

    python benchmarks/summaries_cost.py --rounds=5 --verbosity=1

Each round trains resnet20 twice in this process, with summaries every 20
steps and without, in changing order. The rates are those of the whole timed
run, all between two steps included; the median of the ratios counts.
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


def _images_per_sec(options, verbosity):
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
            train_dir=folder,
            summary_verbosity=verbosity,
            save_summaries_steps=options.every if verbosity else 0,
        )
    return result.images_per_sec


def main() -> None:
    """Measures, and prints a line per round."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--rounds', type=int, default=5)
    parser.add_argument('--steps', type=int, default=100)
    parser.add_argument('--every', type=int, default=20)
    parser.add_argument('--batch', type=int, default=32)
    parser.add_argument('--verbosity', type=int, default=1)
    parser.add_argument('--device', default='cpu')
    options = parser.parse_args()
    reporting.route_logging()
    logging.getLogger('kbench').setLevel(logging.ERROR)
    ratios = []
    for number in range(options.rounds):
        order = (0, options.verbosity)
        found = {
            verbosity: _images_per_sec(options, verbosity)
            for verbosity in (order if number % 2 else order[::-1])
        }
        ratios.append(found[options.verbosity] / found[0])
        sys.stdout.write(
            f'round {number + 1}\t{found[0]:.1f} images/s without, '
            f'{found[options.verbosity]:.1f} with\tratio {ratios[-1]:.3f}\n'
        )
        sys.stdout.flush()
    sys.stdout.write(
        f'median ratio {statistics.median(ratios):.3f}; load '
        f'{os.getloadavg()[0]:.1f} on {os.cpu_count()} processors\n'
    )


if __name__ == '__main__':
    main()
