"""Runs every cluster mode on this machine, in turns with one process.

    python benchmarks/clusters.py --runs=3
    python benchmarks/clusters.py --runs=20 --model=trivial   # a soak
    python benchmarks/clusters.py --model=trivial --batch=2 --steps=200

Each run is a cluster of its own, at the same global batch. Prints images per
second and milliseconds per step of each run and the load of the machine; at
the end medians, the median ratio to the one process of the same round, and
what went wrong. The last line above has next to nothing to compute: what its
steps take more than those of one process is the barrier between the workers.
"""

import argparse
import os
import re
import statistics
import subprocess
import sys

_MODES = {
    'one process': (None, 'parameter_server'),
    'all-reduce': (('--workers=2',), 'distributed_all_reduce'),
    'parameter_server': (('--workers=2', '--ps=1'), 'parameter_server'),
    'distributed_replicated': (
        ('--workers=2', '--ps=1'),
        'distributed_replicated',
    ),
}
_TOTAL = re.compile(r'total images/sec: (\d+\.\d+)')


def _run(name, model, batch, steps):
    roles, mode = _MODES[name]
    flags = [
        f'--variable_update={mode}',
        f'--model={model}',
        '--data_name=cifar10',
        '--device=cpu',
        f'--num_batches={steps}',
        f'--batch_size={batch if roles is None else batch // 2}',
    ]
    command = [sys.executable, '-m', 'kbench']
    if roles is not None:
        command += ['launch', *roles, '--']
    done = subprocess.run(
        [*command, *flags], capture_output=True, text=True, check=False
    )
    total = _TOTAL.search(done.stdout)
    fine = done.returncode == 0 and total and 'error:' not in done.stderr
    if not fine:
        sys.stdout.write(f'{name}: status {done.returncode}\n{done.stderr}\n')
    return float(total.group(1)) if fine else None


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--runs', type=int, default=3)
    parser.add_argument('--model', default='resnet20')
    parser.add_argument('--batch', type=int, default=64)
    parser.add_argument('--steps', type=int, default=40)
    options = parser.parse_args()
    found = {name: [] for name in _MODES}
    for number in range(options.runs):
        for name, totals in found.items():
            total = _run(name, options.model, options.batch, options.steps)
            totals.append(total)
            step = 1e3 * options.batch / total if total else float('nan')
            sys.stdout.write(
                f'{number + 1}\t{name}\t{total}\t{step:.1f} ms per step\t'
                f'load {os.getloadavg()[0]:.1f}\n'
            )
            sys.stdout.flush()
    alone = found['one process']
    for name, totals in found.items():
        good = [total for total in totals if total]
        ratios = [
            total / one
            for total, one in zip(totals, alone, strict=True)
            if total and one
        ]
        median = statistics.median(good) if good else float('nan')
        ratio = statistics.median(ratios) if ratios else float('nan')
        sys.stdout.write(
            f'{name}: {len(good)} of {len(totals)} good, median {median:.1f} '
            f'images/s, {1e3 * options.batch / median:.1f} ms per step, '
            f'{ratio:.2f} of one process\n'
        )


if __name__ == '__main__':
    main()
