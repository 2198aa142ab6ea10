"""Number formats against float32: top-1 on held-out digits, over seeds.

    python benchmarks/accuracy.py --model=resnet20 --dtype=bfloat16
    python benchmarks/accuracy.py --model=lenet --dtype=float16

Each seed trains once per format on the same images in the same order and
evaluates on the images that were held out. A line per training, then the
means and their difference in points.
"""

import argparse
import contextlib
import io
import statistics
import tempfile
import time

import kbench

# What trains each model well on digits in a few minutes on two cores.
_RECIPES = {
    'resnet20': dict(num_epochs=8.0, learning_rate=0.05, weight_decay=1e-4),
    'lenet': dict(num_epochs=4.0, learning_rate=0.02, weight_decay=1e-4),
}


def top_1(model: str, dtype: str, seed: int, **changes) -> float:
    """Trains and evaluates once; returns the share of right answers."""
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        kbench.run(
            **dict(
                model=model,
                data_name='digits',
                device='cpu',
                batch_size=32,
                num_warmup_batches=0,
                optimizer='momentum',
                learning_rate_schedule='cosine',
                compute_dtype=dtype,
                tf_random_seed=seed,
                train_dir=folder,
            )
            | _RECIPES[model]
            | changes
        )
        result = kbench.run(eval=True, train_dir=folder, device='cpu')
    return result.evaluation.top_1


def main() -> None:
    """Compares, and prints a line per training."""
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--model', choices=_RECIPES, default='resnet20')
    parser.add_argument('--dtype', default='bfloat16')
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--num_epochs', type=float)
    options = parser.parse_args()
    changes = {}
    if options.num_epochs is not None:
        changes['num_epochs'] = options.num_epochs
    found = {'float32': [], options.dtype: []}
    for seed in range(1, options.seeds + 1):
        for dtype, values in found.items():
            start = time.perf_counter()
            values.append(100 * top_1(options.model, dtype, seed, **changes))
            print(
                f'{options.model}\t{dtype}\tseed {seed}\t'
                f'top-1 {values[-1]:.2f} %\t'
                f'{time.perf_counter() - start:.0f} s',
                flush=True,
            )
    means = {dtype: statistics.fmean(found[dtype]) for dtype in found}
    for dtype, mean in means.items():
        print(f'{options.model}\t{dtype}\tmean\ttop-1 {mean:.2f} %')
    difference = means[options.dtype] - means['float32']
    print(f'difference {difference:+.2f} points')


if __name__ == '__main__':
    main()
