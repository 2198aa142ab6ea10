"""Datasets in TFDS's own format, written and read without a network."""

import input_helpers as helpers
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from kbench import datasets
from kbench import input as input_lib

_PLAIN = input_lib.InputConfig(distortions=False)


def _write(
    folder, name: str, counts: dict[str, int], *, version='1.0.0', side=8
):
    """Writes tagged images: the red byte is the number."""
    features = tfds.features.FeaturesDict(
        {
            'image': tfds.features.Image(shape=(None, None, 3)),
            'label': tfds.features.ClassLabel(num_classes=10),
            'file_name': tfds.features.Text(),
        }
    )
    split_datasets = {}
    for split, count in counts.items():
        numbers = np.arange(count)
        images = np.zeros((count, side, side, 3), np.uint8)
        images[..., 0] = numbers[:, None, None]
        split_datasets[split] = tf.data.Dataset.from_tensor_slices(
            {
                'image': images,
                'label': numbers % 10,
                'file_name': [f'{i}.png' for i in numbers],
            }
        )
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version=version,
        data_dir=str(folder),
        split_datasets=split_datasets,
        features=features,
        disable_shuffling=True,
    )


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tfds')
    _write(folder, 'my_photos', {'train': 20, 'test': 7})
    _write(folder, 'my_photos', {'train': 200, 'test': 7}, version='2.0.0')
    return folder


@pytest.mark.parametrize(
    ('name', 'count'),
    [
        (None, 200),
        ('my_photos', 200),
        ('my_photos:1.0.0', 20),
        ('my_photos:2.0.0', 200),
    ],
)
def test_by_name_and_by_version(folder, name, count):
    datasets.check_data_dir(str(folder), name)
    dataset = datasets.open_dataset(str(folder), name)
    assert dataset.name == 'my_photos'
    assert dataset.num_classes == 10
    assert dataset.num_examples('train') == count
    # What TFDS calls test is what is evaluated.
    assert dataset.num_examples('validation') == 7
    stream = input_lib.create_eval_dataset(
        dataset, config=_PLAIN, image_size=8, batch_size=6, split='train'
    )
    seen = [
        (int(image[0, 0, 0]), int(label))
        for images, labels, weights in stream
        for image, label, weight in zip(images, labels, weights, strict=True)
        if weight > 0
    ]
    assert sorted(seen) == [(i, i % 10) for i in range(count)]


def test_training_goes_through_an_epoch(folder):
    dataset = datasets.open_dataset(str(folder), 'my_photos:1.0.0')
    stream = input_lib.create_train_dataset(
        dataset, config=_PLAIN, image_size=8, batch_size=5, seed=1
    )
    batches = [labels.numpy() for _, labels in stream.take(8)]
    for epoch in (batches[:4], batches[4:]):
        labels = np.concatenate(epoch)
        np.testing.assert_array_equal(np.bincount(labels), [2] * 10)


def test_the_folder_of_one_version(folder):
    path = folder / 'my_photos' / '1.0.0'
    dataset = datasets.open_dataset(str(path), None)
    assert (dataset.name, dataset.num_examples('train')) == ('my_photos', 20)


def test_wrong_names_list_the_choices(folder, tmp_path):
    cases = [
        (folder, 'my_fotos', r'no TFDS dataset my_fotos.*my_photos:1\.0\.0'),
        (folder, 'my_photos:3.0.0', r'my_photos:3\.0\.0.*my_photos:2\.0\.0'),
        (folder, 'imagenet2012', 'no TFDS dataset imagenet2012'),
    ]
    for where, name, expected in cases:
        for refuse in (datasets.check_data_dir, datasets.open_dataset):
            with pytest.raises(ValueError, match=expected) as caught:
                refuse(str(where), name)
            assert '\n' not in str(caught.value)
    dataset = datasets.open_dataset(str(folder), 'my_photos')
    with pytest.raises(ValueError, match='splits present: test, train'):
        dataset.split('unsupervised')


def test_several_datasets_ask_for_a_name(folder, tmp_path):
    _write(tmp_path, 'first', {'train': 2})
    _write(tmp_path, 'second', {'train': 2})
    with pytest.raises(ValueError, match=r'one of first:1\.0\.0, second'):
        datasets.open_dataset(str(tmp_path), None)
    assert datasets.open_dataset(str(tmp_path), 'second').name == 'second'


def test_empty_folder_and_raw_archives(tmp_path):
    with pytest.raises(ValueError, match='is empty'):
        datasets.open_dataset(str(tmp_path), 'imagenet2012')
    (tmp_path / 'ILSVRC2012_img_val.tar').write_bytes(b'x')
    for name in (None, 'imagenet2012'):
        with pytest.raises(ValueError, match=r'raw archives .*_val\.tar'):
            datasets.open_dataset(str(tmp_path), name)


def test_a_damaged_file_is_named(tmp_path):
    _write(tmp_path, 'mine', {'train': 4})
    path = next((tmp_path / 'mine' / '1.0.0').glob('*tfrecord*'))
    path.write_bytes(path.read_bytes()[:-9])
    dataset = datasets.open_dataset(str(tmp_path), None)
    stream = input_lib.create_train_dataset(
        dataset, config=_PLAIN, image_size=8, batch_size=1, seed=1
    )
    with pytest.raises(tf.errors.DataLossError) as caught:
        for _ in stream.take(8):
            pass
    line = input_lib.describe_data_error(caught.value, dataset)
    assert line.startswith(f'{path} is corrupted or truncated: record 3')
    path.write_bytes(b'')
    with pytest.raises(ValueError, match='is absent or empty'):
        datasets.open_dataset(str(tmp_path), None)


def test_features_that_are_no_labelled_images(tmp_path):
    tfds.dataset_builders.store_as_tfds_dataset(
        name='numbers',
        version='1.0.0',
        data_dir=str(tmp_path),
        split_datasets={
            'train': tf.data.Dataset.from_tensor_slices({'x': [1, 2]})
        },
        features=tfds.features.FeaturesDict({'x': np.int32}),
    )
    with pytest.raises(ValueError, match='expected one image with one class'):
        datasets.open_dataset(str(tmp_path), None)


def test_photographs_stay_encoded(tmp_path):
    features = tfds.features.FeaturesDict(
        {
            'image': tfds.features.Image(encoding_format='jpeg'),
            'label': tfds.features.ClassLabel(names=['china', 'flower']),
        }
    )
    photographs = [np.asarray(helpers.photo(n)) for n in ('china', 'flower')]
    tfds.dataset_builders.store_as_tfds_dataset(
        name='photographs',
        version='1.0.0',
        data_dir=str(tmp_path),
        split_datasets={
            'train': tf.data.Dataset.from_tensor_slices(
                {'image': np.stack(photographs), 'label': [0, 1]}
            )
        },
        features=features,
        disable_shuffling=True,
    )
    dataset = datasets.open_dataset(str(tmp_path), None)
    assert dataset.class_names == ('china', 'flower')
    assert dataset.image_dataset == 'imagenet'
    images, labels = next(
        iter(
            input_lib.create_train_dataset(
                dataset,
                config=input_lib.InputConfig(),
                image_size=64,
                batch_size=2,
                seed=1,
            )
        )
    )
    assert images.shape == (2, 64, 64, 3)
    assert sorted(labels.numpy()) == [0, 1]


def test_nothing_is_downloaded_unless_asked(tmp_path):
    with pytest.raises(ValueError, match='download needs a data_name'):
        datasets.open_dataset(str(tmp_path), None, download=True)
    with pytest.raises(ValueError, match='TFDS cannot download and prepare'):
        datasets.open_dataset(str(tmp_path), 'no_such_set', download=True)
