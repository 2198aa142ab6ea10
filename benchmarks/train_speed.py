"""kbench against keras.applications + Model.fit, in alternating processes.

    python benchmarks/train_speed.py --rounds=3

Every run is a process of its own on the same machine. Each round runs both,
and the ratio is taken round by round, since the machine's speed drifts.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

_HERE = os.path.dirname(os.path.abspath(__file__))
# kbench's names of models that keras.applications has too.
_KERAS_NAMES = {
    'resnet50': 'ResNet50',
    'resnet101': 'ResNet101',
    'vgg16': 'VGG16',
    'vgg19': 'VGG19',
}


def _run(command: list[str]) -> tuple[str, float]:
    """Runs a process; returns its output and when step 1 was printed."""
    start = time.perf_counter()
    first = None
    lines = []
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=os.path.dirname(_HERE),
    ) as process:
        for line in process.stdout:
            if first is None and line.startswith('1\t'):
                first = time.perf_counter() - start
            lines.append(line)
    if process.returncode:
        sys.exit(f'{" ".join(command)} ended with {process.returncode}')
    return ''.join(lines), first or 0.0


def _kbench(options: argparse.Namespace) -> float:
    text, _ = _run(
        [
            *(sys.executable, '-m', 'kbench', f'--model={options.model}'),
            f'--batch_size={options.batch_size}',
            f'--num_batches={options.num_batches}',
            f'--num_warmup_batches={options.num_warmup_batches}',
            '--device=cpu',
            f'--compute_dtype={options.compute_dtype}',
        ]
    )
    return float(re.search(r'^total images/sec: (.*)$', text, re.M).group(1))


def _keras(options: argparse.Namespace) -> float:
    policy = options.compute_dtype
    text, _ = _run(
        [
            *(sys.executable, os.path.join(_HERE, 'keras_fit.py')),
            f'--model={_KERAS_NAMES[options.model]}',
            f'--batch_size={options.batch_size}',
            f'--num_batches={options.num_batches}',
            f'--num_warmup_batches={options.num_warmup_batches}',
            f'--policy={policy if policy == "float32" else "mixed_" + policy}',
        ]
    )
    return json.loads(text.splitlines()[-1])['images_per_sec']


def _first_step(options: argparse.Namespace) -> tuple[float, float]:
    """Seconds to the end of step 1, and to import TensorFlow alone."""
    _, first = _run(
        [
            *(sys.executable, '-m', 'kbench', f'--model={options.model}'),
            f'--batch_size={options.batch_size}',
            *('--num_batches=1', '--num_warmup_batches=0', '--device=cpu'),
        ]
    )
    start = time.perf_counter()
    _run([sys.executable, '-c', 'import tensorflow'])
    return first, time.perf_counter() - start


def main() -> None:
    """Runs the rounds and prints a line each."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--model', default='resnet50', choices=_KERAS_NAMES)
    parser.add_argument('--batch_size', type=int, default=16)
    parser.add_argument('--num_batches', type=int, default=8)
    parser.add_argument('--num_warmup_batches', type=int, default=2)
    parser.add_argument('--compute_dtype', default='float32')
    parser.add_argument('--rounds', type=int, default=3)
    options = parser.parse_args()
    ratios = []
    for number in range(1, options.rounds + 1):
        ours, theirs = _kbench(options), _keras(options)
        ratios.append(ours / theirs)
        first, alone = _first_step(options)
        print(
            f'round {number}: kbench {ours:.2f} images/s, keras {theirs:.2f}, '
            f'ratio {ratios[-1]:.2f}; first step after {first:.1f} s, '
            f'import tensorflow {alone:.1f} s',
            flush=True,
        )
    print(f'median ratio {statistics.median(ratios):.2f}')


if __name__ == '__main__':
    main()
