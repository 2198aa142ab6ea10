"""Keras's augmentation, keyed by numbers."""

import input_helpers as helpers
import numpy as np
import pytest
import tensorflow as tf

from kbench import augment, datasets
from kbench import input as input_lib

_SIZE = 32


def _photo() -> tf.Tensor:
    image = helpers.photo('china').resize((_SIZE, _SIZE))
    return tf.constant(np.asarray(image), tf.float32)


def _pictures(config, count: int, parallel: int, seed: int = 5) -> np.ndarray:
    make = augment.make_image_augment(config, _SIZE, seed)
    photo = _photo()
    stream = tf.data.Dataset.range(count).map(
        lambda position: make(photo, position), num_parallel_calls=parallel
    )
    return np.stack(list(stream.as_numpy_iterator()))


@pytest.mark.parametrize(
    'config',
    [
        augment.AugmentConfig(policy='randaugment'),
        augment.AugmentConfig(policy='autoaugment'),
        augment.AugmentConfig(random_erasing=0.5),
    ],
    ids=['randaugment', 'autoaugment', 'erasing'],
)
def test_pictures_follow_from_numbers(config):
    pictures = _pictures(config, 30, 4)
    assert pictures.dtype == np.float32
    assert pictures.min() >= 0 and pictures.max() <= 255
    np.testing.assert_array_equal(pictures, _pictures(config, 30, 1))
    assert (pictures != _pictures(config, 30, 4, seed=6)).any()
    changed = np.abs(pictures - _photo().numpy()).max((1, 2, 3)) > 1
    # Some are changed; erasing leaves about half as they were.
    assert changed.sum() >= 5
    if config.random_erasing:
        assert 6 <= changed.sum() <= 24
    assert len({picture.tobytes() for picture in pictures}) >= 5


def _mix(config, position: int = 3):
    mix = augment.make_batch_augment(config, 10, 5)
    images = tf.random.stateless_uniform([8, 64, 64, 3], [1, 2], 0, 255)
    labels = tf.constant([0, 1, 2, 3, 4, 5, 6, 7])
    mixed, soft = mix(images, labels, tf.constant(position, tf.int64))
    return images.numpy(), mixed.numpy(), soft.numpy()


def test_mixup_mixes_images_as_it_mixes_labels():
    images, mixed, soft = _mix(augment.AugmentConfig(mixup=1.0))
    np.testing.assert_allclose(soft.sum(1), 1, rtol=1e-6)
    expected = np.einsum('bk,khwc->bhwc', soft[:, :8], images)
    np.testing.assert_allclose(mixed, expected, atol=1e-3)
    assert 0.01 < soft.max(1).min() < 0.99


def test_cutmix_weighs_labels_by_area():
    images, mixed, soft = _mix(augment.AugmentConfig(cutmix=1.0))
    np.testing.assert_allclose(soft.sum(1), 1, rtol=1e-6)
    for number in range(8):
        kept = (mixed[number] == images[number]).all(-1).mean()
        assert kept == pytest.approx(soft[number, number], abs=0.04)


def test_mixing_follows_from_numbers():
    config = augment.AugmentConfig(mixup=0.2, cutmix=1.0)
    for first, second, same in ((3, 3, True), (3, 4, False)):
        one, two = _mix(config, first)[1], _mix(config, second)[1]
        assert np.array_equal(one, two) == same


def test_in_the_pipeline():
    config = input_lib.InputConfig(
        augment=augment.AugmentConfig(random_erasing=0.25, mixup=0.2)
    )

    def batches():
        stream = input_lib.create_train_dataset(
            datasets.open_dataset(None, 'digits'),
            config=config,
            image_size=_SIZE,
            batch_size=8,
            seed=1,
        )
        return [(x.numpy(), y.numpy()) for x, y in stream.take(3)]

    first, again = batches(), batches()
    for (x, y), (u, v) in zip(first, again, strict=True):
        assert x.shape == (8, _SIZE, _SIZE, 3)
        assert y.shape == (8, 10) and y.dtype == np.float32
        np.testing.assert_array_equal(x, u)
        np.testing.assert_array_equal(y, v)


@pytest.mark.parametrize(
    ('options', 'expected'),
    [
        ({'policy': 'other'}, 'augment is other, legal are randaugment'),
        ({'random_erasing': 1.5}, 'random_erasing is 1.5, legal are 0 to 1'),
        ({'mixup': -0.1}, r'mixup is -0\.1, legal are 0 and more'),
    ],
)
def test_refused(options, expected):
    with pytest.raises(ValueError, match=expected):
        augment.AugmentConfig(**options)


def test_off_is_none():
    config = augment.AugmentConfig()
    assert augment.make_image_augment(config, _SIZE, 1) is None
    assert augment.make_batch_augment(config, 10, 1) is None
