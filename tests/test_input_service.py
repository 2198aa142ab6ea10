"""The pipeline in a tf.data service: a dispatcher and two workers."""

import collections
import contextlib
import subprocess
import sys

import input_helpers as helpers
import numpy as np
import pytest

from kbench import datasets
from kbench import input as input_lib

_DISPATCHER = """
import sys, tensorflow as tf
service = tf.data.experimental.service
server = service.DispatchServer(service.DispatcherConfig(port=0))
sys.stdout.write(server.target.split('://')[1] + '\\n')
sys.stdout.flush()
sys.stdin.read()
"""
_WORKER = """
import sys, tensorflow as tf
service = tf.data.experimental.service
server = service.WorkerServer(
    service.WorkerConfig(dispatcher_address=sys.argv[1])
)
sys.stdout.write('ready\\n')
sys.stdout.flush()
sys.stdin.read()
"""


def _start(code: str, *arguments: str) -> tuple[subprocess.Popen, str]:
    process = subprocess.Popen(
        [sys.executable, '-c', code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return process, process.stdout.readline().strip()


@pytest.fixture(scope='module')
def dispatcher():
    with contextlib.ExitStack() as stack:

        def keep(process: subprocess.Popen) -> None:
            stack.callback(process.stdout.close)
            stack.callback(process.wait, 30)
            stack.callback(process.kill)
            stack.callback(process.stdin.close)

        process, address = _start(_DISPATCHER)
        keep(process)
        for _ in range(2):
            worker, said = _start(_WORKER, address)
            keep(worker)
            assert said == 'ready'
        yield address


@pytest.mark.slow
def test_two_workers_give_every_epoch_once(dispatcher, tmp_path):
    helpers.write_tagged(tmp_path, 'train', 12, 3)
    dataset = datasets.open_dataset(str(tmp_path), None)
    config = input_lib.InputConfig(
        distortions=False, resize_method='nearest', data_service=dispatcher
    )
    stream = input_lib.create_train_dataset(
        dataset, config=config, image_size=8, batch_size=4, seed=1
    )
    seen: collections.Counter = collections.Counter()
    batches = 0
    # Three batches are an epoch of one of the workers.
    for images, labels in stream.take(60):
        numbers = images.numpy()[:, 0, 0, 0]
        numbers = np.round(numbers).astype(int)
        assert (labels.numpy() == numbers % 10).all()
        seen.update(numbers.tolist())
        batches += 1
    assert batches == 60 and sorted(seen) == list(range(12))
    # Each worker may be in the middle of an epoch.
    assert max(seen.values()) - min(seen.values()) <= 2
    assert sum(seen.values()) == 240


@pytest.mark.slow
def test_embedded_data_travel_too(dispatcher):
    config = input_lib.InputConfig(data_service=dispatcher)
    stream = input_lib.create_train_dataset(
        datasets.open_dataset(None, 'digits'),
        config=config,
        image_size=32,
        batch_size=16,
        seed=1,
    )
    for images, labels in stream.take(5):
        assert images.shape == (16, 32, 32, 3)
        assert 0 <= labels.numpy().min() <= labels.numpy().max() <= 9


def test_bad_images_cannot_be_counted_over_there():
    with pytest.raises(ValueError, match='choose one of the two'):
        input_lib.create_train_dataset(
            datasets.open_dataset(None, 'digits'),
            config=input_lib.InputConfig(data_service='localhost:1'),
            image_size=32,
            batch_size=16,
            seed=1,
            bad_images=input_lib.BadImages(),
        )


@pytest.mark.parametrize(
    ('address', 'expected'),
    [
        ('nonsense', 'nonsense, legal is host:port'),
        ('127.0.0.1:1', r'127\.0\.0\.1:1 does not answer'),
    ],
)
def test_no_dispatcher_there(address, expected):
    with pytest.raises(ValueError, match=expected):
        input_lib.create_train_dataset(
            datasets.open_dataset(None, 'digits'),
            config=input_lib.InputConfig(data_service=address),
            image_size=32,
            batch_size=16,
            seed=1,
        )
