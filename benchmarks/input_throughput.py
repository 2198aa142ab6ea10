"""Images per second of the input pipeline, next to tf_cnn_benchmarks.

    python benchmarks/input_throughput.py
    python benchmarks/input_throughput.py --peer=FOLDER --peer_python=PYTHON

Makes 1,024 photographs of 500 x 375 pixels and about 80 kB from those inside
scikit-image and scikit-learn, then measures in alternation, each in a process
of its own: kbench's pipeline, down to normalized float32 batches, and the
pipeline of tf_cnn_benchmarks feeding its `trivial` model, since it has no way
to run alone; --whole runs kbench's trivial model too. FOLDER is its folder of
scripts, PYTHON an interpreter with tensorflow and tf-keras. The same 227 x 227
pixels on both sides. Other load on the machine spoils it. --memory writes the
resident memory over 30 epochs instead.
"""

import argparse
import io
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

_SHARDS, _PER_SHARD = 8, 128
_SIZE, _BATCH = 227, 64


def make_photos(folder: str) -> None:
    """Writes the shards of photographs."""
    import numpy as np
    import skimage
    import sklearn
    import tensorflow as tf
    from PIL import Image

    inside = {
        skimage: (
            'data',
            ('rocket.jpg', 'retina.jpg', 'hubble_deep_field.jpg'),
        ),
        sklearn: ('datasets/images', ('china.jpg', 'flower.jpg')),
    }
    photos = [
        Image.open(os.path.join(os.path.dirname(package.__file__), where, name))
        for package, (where, names) in inside.items()
        for name in names
    ]
    random = np.random.default_rng(0)

    def encode(number: int) -> bytes:
        photo = photos[number % len(photos)]
        width = int(min(photo.width, photo.height * 4 / 3))
        width = int(width * random.uniform(0.7, 1))
        height = width * 3 // 4
        left = random.integers(0, photo.width - width + 1)
        top = random.integers(0, photo.height - height + 1)
        box = (left, top, left + width, top + height)
        picture = photo.crop(box).convert('RGB').resize((500, 375))
        # The best quality that stays near the size of ImageNet's photographs.
        for quality in range(100, 50, -1):
            buffer = io.BytesIO()
            picture.save(buffer, 'JPEG', quality=quality)
            if buffer.tell() < 88_000:
                break
        return buffer.getvalue()

    def feature(value: bytes | int) -> tf.train.Feature:
        if isinstance(value, int):
            values = tf.train.Int64List(value=[value])
            return tf.train.Feature(int64_list=values)
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    for shard in range(_SHARDS):
        path = f'{folder}/train-{shard:05d}-of-{_SHARDS:05d}'
        with tf.io.TFRecordWriter(path) as writer:
            for number in range(shard, _SHARDS * _PER_SHARD, _SHARDS):
                values = {
                    'image/encoded': encode(number),
                    'image/class/label': 1 + number % 1000,
                    'image/class/text': b'photo',
                }
                features = tf.train.Features(
                    feature={key: feature(v) for key, v in values.items()}
                )
                example = tf.train.Example(features=features)
                writer.write(example.SerializeToString())


def _import_kbench() -> None:
    """Imports what the pipeline is made of: not what is measured."""
    from kbench import runtime

    runtime.import_tensorflow({})
    # As --benchmark_input has it, and training on a GPU.
    runtime.set_threads(1, 0)
    import kbench.input  # noqa: F401


def _pipeline(folder: str, distortions: bool) -> Iterator:
    from kbench import datasets
    from kbench import input as input_lib

    stream = input_lib.create_train_dataset(
        datasets.open_dataset(folder, 'imagenet'),
        config=input_lib.InputConfig(distortions=distortions, dtype='float32'),
        image_size=_SIZE,
        batch_size=_BATCH,
        seed=1,
    )
    return iter(stream)


def run_kbench(folder: str, distortions: bool, seconds: float) -> None:
    """Measures kbench's pipeline; runs in a process of its own."""
    _import_kbench()
    start = time.perf_counter()
    batches = _pipeline(folder, distortions)
    next(batches)
    first = time.perf_counter() - start
    for _ in range(20):
        next(batches)
    count, start, busy = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        next(batches)
        count += _BATCH
    wall = time.perf_counter() - start
    busy = time.process_time() - busy
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(
        f'images/sec: {count / wall:.1f} first batch: {first:.2f} s '
        f'CPU per image: {1e3 * busy / count:.3f} ms memory: {memory:.0f} MB\n'
    )


def watch_memory(folder: str, distortions: bool, epochs: int) -> None:
    """Writes the resident memory after each epoch of the pipeline."""
    _import_kbench()
    batches = _pipeline(folder, distortions)
    for epoch in range(1, epochs + 1):
        for _ in range(_SHARDS * _PER_SHARD // _BATCH):
            next(batches)
        with open('/proc/self/statm') as file:
            pages = int(file.read().split()[1])
        resident = pages * os.sysconf('SC_PAGE_SIZE') / 2**20
        sys.stdout.write(f'epoch {epoch}: {resident:.0f} MB resident\n')


def run_program(
    command: list[str], folder: str, distortions: bool, batches: int, **where
) -> str:
    """Trains the trivial model on the photographs; returns the total line."""
    done = subprocess.run(
        [
            *command,
            '--device=cpu',
            '--data_format=NHWC',
            '--model=trivial',
            f'--data_dir={folder}',
            '--data_name=imagenet',
            f'--batch_size={_BATCH}',
            f'--num_batches={batches}',
            '--num_warmup_batches=20',
            f'--distortions={distortions}',
            '--nodistort_color_in_yiq',
            '--num_intra_threads=0',
        ],
        capture_output=True,
        text=True,
        check=True,
        **where,
    )
    return re.search(r'total images/sec: [\d.]+', done.stdout)[0]


def run_alone(
    options: argparse.Namespace, folder: str, distortions: bool
) -> str:
    """Measures kbench's pipeline in a process; returns what it writes."""
    command = [
        sys.executable,
        __file__,
        f'--run={folder}',
        f'--seconds={options.seconds}',
    ]
    command += ['--distortions'] if distortions else []
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _rate(line: str) -> float:
    return float(re.search(r'images/sec: ([\d.]+)', line)[1])


def compare(options: argparse.Namespace, folder: str) -> None:
    """Alternates both sides and writes the medians."""
    for distortions in (False, True):
        rates: dict[str, list[float]] = {'kbench': [], 'peer': []}
        for _ in range(options.rounds):
            if options.whole:
                line = run_program(
                    [sys.executable, '-m', 'kbench'],
                    folder,
                    distortions,
                    options.batches,
                )
            else:
                line = run_alone(options, folder, distortions)
            rates['kbench'].append(_rate(line))
            sys.stdout.write(f'kbench {line}\n')
            if options.peer:
                line = run_program(
                    [options.peer_python, 'tf_cnn_benchmarks.py'],
                    folder,
                    distortions,
                    options.batches,
                    cwd=options.peer,
                    env={**os.environ, 'TF_USE_LEGACY_KERAS': '1'},
                )
                rates['peer'].append(_rate(line))
                sys.stdout.write(f'peer   {line}\n')
            sys.stdout.flush()
        medians = {k: statistics.median(v) for k, v in rates.items() if v}
        ratio = medians['kbench'] / medians.get('peer', medians['kbench'])
        sys.stdout.write(
            f'distortions={distortions}: {medians}, ratio {ratio:.2f}\n'
        )


def main() -> None:
    """Parses the arguments and runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--peer')
    parser.add_argument('--peer_python', default=sys.executable)
    parser.add_argument('--batches', type=int, default=80)
    parser.add_argument('--whole', action='store_true')
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--seconds', type=float, default=8)
    parser.add_argument('--memory', action='store_true')
    parser.add_argument('--data_dir', help='shards that were made before')
    parser.add_argument('--run', help=argparse.SUPPRESS)
    parser.add_argument('--distortions', action='store_true')
    options = parser.parse_args()
    if options.run:
        run_kbench(options.run, options.distortions, options.seconds)
        return
    with tempfile.TemporaryDirectory() as folder:
        if options.data_dir:
            folder = options.data_dir
        else:
            make_photos(folder)
        if options.memory:
            watch_memory(folder, options.distortions, epochs=30)
        else:
            compare(options, folder)


if __name__ == '__main__':
    main()
