"""The stream of batches: every image once, in an order that is a number."""

import os

import input_helpers as helpers
import numpy as np
import pytest
import tensorflow as tf

from kbench import datasets
from kbench import input as input_lib
from kbench.datasets import streams

_PLAIN = input_lib.InputConfig(distortions=False)


def _open_tagged(folder, count: int, files: int, **options):
    helpers.write_tagged(folder, 'train', count, files, **options)
    helpers.write_tagged(folder, 'validation', count, files, **options)
    return datasets.open_dataset(str(folder), None)


def _numbers(part, share, count: int, start: int = 0, seed: int = 3):
    """Numbers of the images that `train_records` gives, in order."""
    stream = streams.train_records(
        part, share, seed=seed, start_record=start
    ).take(count)
    numbers = []
    for _, record in stream:
        if record.dtype == tf.string:
            features = tf.train.Example.FromString(
                record.numpy()
            ).features.feature
            name = features['image/filename'].bytes_list.value[0]
            numbers.append(int(name.decode().split('.')[0]))
        else:
            numbers.append(int(record))
    return numbers


@pytest.mark.parametrize('files', [1, 3, 8])
@pytest.mark.parametrize('workers', [1, 2])
def test_workers_read_every_image_once_per_epoch(tmp_path, files, workers):
    dataset = _open_tagged(tmp_path, 29, files)
    part = dataset.split('train')
    everything, sizes = [], []
    for index in range(workers):
        share = streams.Share(index, workers)
        chosen, every, offset = streams._assign_share(part, share)
        size = streams._share_count(part, chosen, every, offset)
        two_epochs = _numbers(part, share, 2 * size)
        assert sorted(two_epochs[:size]) == sorted(two_epochs[size:])
        assert two_epochs[:size] != two_epochs[size:]
        everything += two_epochs[:size]
        sizes.append(size)
    assert sorted(everything) == list(range(29))
    assert max(sizes) - min(sizes) <= 1


def test_more_workers_than_images(tmp_path):
    dataset = _open_tagged(tmp_path, 2, 1)
    with pytest.raises(ValueError, match='3 workers cannot share 2 train'):
        input_lib.create_train_dataset(
            dataset,
            config=input_lib.InputConfig(num_shards=3, shard_index=2),
            image_size=8,
            batch_size=1,
            seed=1,
        )


@pytest.mark.parametrize('source', ['digits', 'tfrecord'])
def test_the_seed_gives_the_order_and_resuming_is_a_number(tmp_path, source):
    if source == 'digits':
        part = datasets.open_dataset(None, 'digits').split('train')
    else:
        part = _open_tagged(tmp_path, 40, 4).split('train')
    share = streams.Share()
    first = _numbers(part, share, 100)
    assert first == _numbers(part, share, 100)
    assert first != _numbers(part, share, 100, seed=4)
    for start in (0, 1, 39, 40, 41, 85):
        assert first[start:] == _numbers(part, share, 100 - start, start)


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp('photos')
    names = list(helpers.PHOTOS)
    for split in ('train', 'validation'):
        for shard in range(2):
            helpers.write_shard(
                folder / f'{split}-{shard:05d}-of-00002',
                [
                    helpers.make_example(
                        helpers.photo_bytes(name),
                        number + 1,
                        f'{name}.jpg',
                        boxes=((0.1, 0.2, 0.6, 0.9),),
                    )
                    for number, name in enumerate(names)
                ],
            )
    return datasets.open_dataset(str(folder), None)


def _train_batches(dataset, count, *, batch_size=4, start=0, **options):
    stream = input_lib.create_train_dataset(
        dataset,
        config=input_lib.InputConfig(**options),
        image_size=32,
        batch_size=batch_size,
        seed=5,
        start_batch=start,
    )
    return [(x.numpy(), y.numpy()) for x, y in stream.take(count)]


def _assert_equal(left, right):
    assert len(left) == len(right)
    for one, two in zip(left, right, strict=True):
        for a, b in zip(one, two, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize('kind', ['photos', 'digits'])
def test_same_seed_same_pixels(photos, kind):
    dataset = photos
    if kind == 'digits':
        dataset = datasets.open_dataset(None, 'digits')
    batches = _train_batches(dataset, 5)
    images, labels = batches[0]
    assert images.shape == (4, 32, 32, 3) and labels.dtype == np.int32
    assert images.min() >= 0 and images.max() <= 255
    _assert_equal(batches, _train_batches(dataset, 5))
    _assert_equal(batches[3:], _train_batches(dataset, 2, start=3))
    # Two replicas of half the batch see the same images in the same order.
    halves = _train_batches(dataset, 10, batch_size=2, num_replicas=2)
    joined = [
        tuple(map(np.concatenate, zip(*halves[i : i + 2], strict=True)))
        for i in range(0, 10, 2)
    ]
    _assert_equal(batches, joined)


def test_the_same_image_looks_different_in_every_epoch(photos):
    one, other = _train_batches(photos, 2, batch_size=6)
    for label in range(3):
        looks = [
            images[labels == label][0].tobytes()
            for images, labels in (one, other)
        ]
        assert looks[0] != looks[1]


def test_what_is_lossless_stays_uint8(tmp_path, photos):
    cases = [
        (photos, {'distortions': False, 'resize_method': 'crop'}, np.uint8),
        (photos, {'distortions': False, 'resize_method': 'nearest'}, np.uint8),
        (photos, {'distortions': False}, np.float32),
        (photos, {}, np.float32),
    ]
    for dataset, options, dtype in cases:
        assert _train_batches(dataset, 1, **options)[0][0].dtype == dtype


def test_cache_data_repeats_one_record(photos):
    batches = _train_batches(photos, 2, cache_data=True)
    labels = np.concatenate([labels for _, labels in batches])
    assert len(set(labels)) == 1
    # The record is one, the distortions are not.
    images = np.concatenate([images for images, _ in batches])
    assert len({image.tobytes() for image in images}) == len(images)


@pytest.mark.parametrize(
    ('batch_size', 'replicas', 'shards'),
    [(1, 1, 1), (7, 1, 1), (8, 2, 1), (5, 3, 1), (64, 2, 1), (4, 2, 3)],
)
def test_every_image_is_evaluated_once(tmp_path, batch_size, replicas, shards):
    dataset = _open_tagged(tmp_path, 29, 3)
    counted = []
    for index in range(shards):
        config = input_lib.InputConfig(
            num_replicas=replicas, num_shards=shards, shard_index=index
        )
        stream = input_lib.create_eval_dataset(
            dataset, config=config, image_size=8, batch_size=batch_size
        )
        batches = [[t.numpy() for t in batch] for batch in stream]
        expected = input_lib.num_eval_batches(29, batch_size, config)
        assert len(batches) == expected
        assert len(batches) % replicas == 0
        for images, labels, weights in batches:
            assert images.shape == (batch_size, 8, 8, 3)
            assert weights.dtype == np.float32
            for image, label, weight in zip(
                images, labels, weights, strict=True
            ):
                if weight:
                    counted.append(int(image[0, 0, 0]))
                    assert label == counted[-1] % 10
                else:
                    assert not image.any()
    assert sorted(counted) == list(range(29))


def test_evaluation_of_a_part(tmp_path):
    helpers.write_tagged(tmp_path, 'validation', 29, 3)
    dataset = datasets.open_dataset(str(tmp_path), None, num_eval_examples=6)
    stream = input_lib.create_eval_dataset(
        dataset, config=_PLAIN, image_size=8, batch_size=4
    )
    assert sum(weights.numpy().sum() for _, _, weights in stream) == 6


def _folder_with(tmp_path, encoded: bytes):
    good = helpers.encode(helpers.photo('china').resize((64, 48)))
    for split in ('train', 'validation'):
        for shard in range(2):
            helpers.write_shard(
                tmp_path / f'{split}-{shard:05d}-of-00002',
                [
                    helpers.make_example(
                        encoded if (shard, i) == (1, 2) else good,
                        1 + i % 2,
                        f'{shard}_{i}.jpg',
                    )
                    for i in range(4)
                ],
            )
    return datasets.open_dataset(str(tmp_path), None)


@pytest.mark.parametrize('mode', ['CMYK', 'L', 'RGBA', 'P', 'RGB'])
def test_every_colour_space_under_a_jpeg_name(tmp_path, mode):
    image = helpers.photo('china').resize((64, 48))
    file_format = 'JPEG' if mode in ('CMYK', 'L') else 'PNG'
    dataset = _folder_with(
        tmp_path, helpers.encode(image.convert(mode), file_format)
    )
    stream = input_lib.create_eval_dataset(
        dataset, config=_PLAIN, image_size=32, batch_size=4
    )
    images = np.concatenate([images.numpy() for images, _, _ in stream])
    assert images.shape == (8, 32, 32, 3)
    difference = np.abs(images[6] - images[0])
    if mode == 'L':
        difference = np.abs(images[6].mean(-1) - images[0].mean(-1))
    assert difference.mean() < (25 if mode in ('L', 'P') else 6)
    for _ in _train_batches(dataset, 4):
        pass


@pytest.mark.parametrize(
    'broken', [b'', b'no image at all', helpers.photo_bytes('china')[:20000]]
)
@pytest.mark.parametrize('split', ['train', 'validation'])
def test_a_broken_image_is_named(tmp_path, broken, split):
    dataset = _folder_with(tmp_path, broken)
    arguments = {'config': _PLAIN, 'image_size': 32, 'batch_size': 2}
    known = {}
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        if split == 'train':
            stream = input_lib.create_train_dataset(
                dataset, seed=1, **arguments
            )
            known = {'config': _PLAIN, 'batch_size': 2, 'seed': 1}
        else:
            stream = input_lib.create_eval_dataset(dataset, **arguments)
        for _ in stream.take(100):
            pass
    line = input_lib.describe_data_error(
        caught.value, dataset, split=split, **known
    )
    path = os.path.join(str(tmp_path), f'{split}-00001-of-00002')
    assert line == (
        f'{path} record 2 (1_2.jpg) cannot be decoded: the image is broken'
    )


def test_a_shard_that_goes_bad_is_named(tmp_path):
    dataset = _open_tagged(tmp_path, 20, 2)
    path = tmp_path / 'train-00001-of-00002'
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(bytes(raw))
    stream = input_lib.create_train_dataset(
        dataset, config=_PLAIN, image_size=8, batch_size=2, seed=1
    )
    with pytest.raises(tf.errors.DataLossError) as caught:
        for _ in stream.take(20):
            pass
    line = input_lib.describe_data_error(caught.value, dataset)
    assert line.startswith(f'{path} is corrupted or truncated: record ')
    path.unlink()
    with pytest.raises(tf.errors.NotFoundError) as caught:
        for _ in stream.take(20):
            pass
    line = input_lib.describe_data_error(caught.value, dataset)
    assert line == f'{path} has disappeared while it was being read'


def test_a_label_that_turns_up_late_is_named(tmp_path):
    dataset = _open_tagged(tmp_path, 10, 1)
    path = tmp_path / 'train-00000-of-00001'
    helpers.write_shard(
        path, [helpers.make_example(helpers.tagged_images(1)[0], 11)]
    )
    stream = input_lib.create_train_dataset(
        dataset, config=_PLAIN, image_size=8, batch_size=1, seed=1
    )
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        next(iter(stream))
    line = input_lib.describe_data_error(caught.value, dataset)
    assert line == (
        f'{path} record 0 has label 11, legal are 1 to 10 for 10 classes'
    )


def test_image_folder_gives_the_same_pixels_as_its_shards(tmp_path):
    from kbench.commands import prepare

    source = tmp_path / 'in'
    for name in ('china', 'flower'):
        (source / name).mkdir(parents=True)
        for i in range(5):
            image = helpers.photo(name).resize((90 + i, 70))
            (source / name / f'{i}.jpg').write_bytes(helpers.encode(image))
    arguments = [f'--image_dir={source}', f'--output_dir={tmp_path / "out"}']
    prepare.main([*arguments, '--validation_fraction=0.4'])
    shards = datasets.open_dataset(str(tmp_path / 'out'), None)
    folder = datasets.open_dataset(str(source), None)
    assert folder.kind == 'image_folder'
    assert folder.num_classes == 2

    def pictures(dataset, split):
        stream = input_lib.create_eval_dataset(
            dataset, config=_PLAIN, image_size=32, batch_size=1, split=split
        )
        return {(x.numpy().tobytes(), int(y[0])) for x, y, _ in stream}

    both = [
        pictures(shards, 'train') | pictures(shards, 'validation'),
        pictures(folder, 'train'),
    ]
    assert len(both[0]) == 10
    assert both[1] <= both[0] and len(both[1]) == 10


@pytest.mark.parametrize('split', ['train', 'validation'])
def test_bad_images_are_skipped_and_counted(tmp_path, split, caplog):
    dataset = _folder_with(tmp_path, b'no image at all')
    bad = input_lib.BadImages()
    arguments = {
        'config': _PLAIN,
        'image_size': 32,
        'batch_size': 2,
        'bad_images': bad,
    }
    if split == 'train':
        stream = input_lib.create_train_dataset(dataset, seed=1, **arguments)
        # Seven of eight images are good: 28 batches are eight epochs.
        labels = [labels.numpy() for _, labels in stream.take(28)]
        assert np.bincount(np.concatenate(labels)).tolist() == [24, 32]
        assert 8 <= bad.count <= 10
    else:
        stream = input_lib.create_eval_dataset(dataset, **arguments)
        weights = [weights.numpy() for _, _, weights in stream]
        assert np.concatenate(weights).tolist() == [1] * 7 + [0]
        assert bad.count == 1
    assert 'unreadable images are skipped' in caplog.text


def test_a_damaged_shard_is_not_skipped(tmp_path):
    dataset = _open_tagged(tmp_path, 20, 2)
    path = tmp_path / 'train-00001-of-00002'
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(bytes(raw))
    stream = input_lib.create_train_dataset(
        dataset,
        config=_PLAIN,
        image_size=8,
        batch_size=2,
        seed=1,
        bad_images=input_lib.BadImages(),
    )
    with pytest.raises(tf.errors.DataLossError):
        for _ in stream.take(20):
            pass


def test_nothing_bad_changes_nothing(photos):
    def pictures(bad):
        stream = input_lib.create_train_dataset(
            photos,
            config=input_lib.InputConfig(),
            image_size=32,
            batch_size=4,
            seed=5,
            bad_images=bad,
        )
        return [(x.numpy(), y.numpy()) for x, y in stream.take(6)]

    bad = input_lib.BadImages()
    _assert_equal(pictures(bad), pictures(None))
    assert bad.count == 0


@pytest.mark.parametrize(('batch_size', 'replicas'), [(7, 1), (16, 2), (64, 3)])
def test_the_accuracy_of_a_known_classifier(tmp_path, batch_size, replicas):
    # Fifty images; the classifier reads the tag and is wrong on 13 of them.
    dataset = _open_tagged(tmp_path, 50, 3)
    stream = input_lib.create_eval_dataset(
        dataset,
        config=input_lib.InputConfig(num_replicas=replicas),
        image_size=8,
        batch_size=batch_size,
    )
    right = total = 0.0
    for images, labels, weights in stream:
        tags = np.round(images.numpy()[:, 0, 0, 0]).astype(int)
        answers = np.where(tags % 4 == 1, (tags + 1) % 10, tags % 10)
        right += ((answers == labels.numpy()) * weights.numpy()).sum()
        total += weights.numpy().sum()
    assert (right, total) == (37, 50)


@pytest.mark.slow
def test_memory_is_flat_over_epochs(photos):
    def resident_mb() -> float:
        with open('/proc/self/statm') as file:
            pages = int(file.read().split()[1])
        return pages * os.sysconf('SC_PAGE_SIZE') / 2**20

    stream = iter(
        input_lib.create_train_dataset(
            photos,
            config=input_lib.InputConfig(),
            image_size=64,
            batch_size=6,
            seed=1,
        )
    )
    # Six images are an epoch.
    sizes = []
    for _ in range(300):
        next(stream)
        sizes.append(resident_mb())
    # The first epochs fill the buffers and the allocator's pools.
    assert sizes[-1] - sizes[60] < 0.1 * sizes[60]
