"""CIFAR's published folders, and pickles that are up to no good."""

import os
import pickle

import input_helpers as helpers
import numpy as np
import pytest

from kbench import datasets
from kbench import input as input_lib
from kbench.datasets import cifar


def _real_images(kind: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Pieces of a photograph, (n, 3072) as the files have them, and labels."""
    photo = np.asarray(helpers.photo('china'))
    pieces = [
        photo[y : y + 32, x : x + 32]
        for y in range(0, 384, 32)
        for x in range(0, 640, 32)
    ][:count]
    pixels = np.stack([piece.transpose(2, 0, 1).ravel() for piece in pieces])
    classes = 10 if kind == 'cifar10' else 100
    return pixels, np.arange(count) * 7 % classes


def _write(folder, kind: str, binary: bool) -> tuple[np.ndarray, np.ndarray]:
    """Writes the training files; returns what they hold."""
    folder.mkdir(parents=True)
    files = (
        [f'data_batch_{i}' for i in range(1, 6)] + ['test_batch']
        if kind == 'cifar10'
        else ['train', 'test']
    )
    everything = []
    for number, name in enumerate(files):
        pixels, labels = _real_images(kind, 4 + number)
        if binary:
            columns = [labels[:, None]]
            if kind == 'cifar100':
                columns.insert(0, labels[:, None] // 5)
            raw = np.concatenate([*columns, pixels], 1).astype(np.uint8)
            (folder / (name + '.bin')).write_bytes(raw.tobytes())
        else:
            key = b'labels' if kind == 'cifar10' else b'fine_labels'
            content = {b'data': pixels, key: labels.tolist()}
            # The originals were written by Python 2.
            (folder / name).write_bytes(pickle.dumps(content, protocol=2))
        everything.append((pixels, labels))
    train = everything[:-1]
    return (
        np.concatenate([pixels for pixels, _ in train]),
        np.concatenate([labels for _, labels in train]),
    )


@pytest.mark.parametrize('parent', [False, True])
@pytest.mark.parametrize('binary', [False, True])
@pytest.mark.parametrize('kind', ['cifar10', 'cifar100'])
def test_published_folders(tmp_path, kind, binary, parent):
    layout = next(
        name
        for name, layout in cifar.LAYOUTS.items()
        if (layout.name, layout.binary) == (kind, binary)
    )
    pixels, labels = _write(tmp_path / layout, kind, binary)
    folder = tmp_path if parent else tmp_path / layout
    datasets.check_data_dir(str(folder), None)
    dataset = datasets.open_dataset(str(folder), None)
    assert dataset.name == kind
    assert dataset.num_classes == {'cifar10': 10, 'cifar100': 100}[kind]
    assert dataset.image_dataset == 'cifar10'
    part = dataset.split('train')
    np.testing.assert_array_equal(part.labels, labels)
    np.testing.assert_array_equal(
        part.images.transpose(0, 3, 1, 2).reshape(len(labels), -1), pixels
    )
    stream = input_lib.create_eval_dataset(
        dataset,
        config=input_lib.InputConfig(),
        image_size=32,
        batch_size=3,
        split='train',
    )
    images, found, weights = zip(*stream, strict=True)
    weights = np.concatenate(weights) > 0
    assert images[0].dtype == np.uint8
    np.testing.assert_array_equal(np.concatenate(images)[weights], part.images)
    np.testing.assert_array_equal(np.concatenate(found)[weights], labels)


class _Evil:
    def __reduce__(self):
        return (os.system, ('touch hacked',))


class _EvilArray:
    def __reduce__(self):
        return (eval, ('__import__("os").getcwd()',))


@pytest.mark.parametrize('evil', [_Evil(), {b'data': _EvilArray()}])
def test_a_pickle_from_elsewhere_runs_nothing(tmp_path, evil, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / 'data_batch_1'
    path.write_bytes(pickle.dumps(evil))
    with pytest.raises(ValueError, match=r'names .*(system|eval)') as caught:
        datasets.open_dataset(str(tmp_path), 'cifar10')
    assert str(path) in str(caught.value)
    assert not (tmp_path / 'hacked').exists()


@pytest.mark.parametrize(
    'value',
    [
        np.arange(6, dtype=np.int64).reshape(2, 3),
        np.float32(2.5),
        {'text': 'ü', b'bytes': b'\x00\xff', 'list': [1, 2.5, None, (True,)]},
        {1, 2, 3},
    ],
)
@pytest.mark.parametrize('protocol', [2, 4])
def test_plain_data_come_back(tmp_path, value, protocol):
    path = tmp_path / 'plain'
    path.write_bytes(pickle.dumps(value, protocol=protocol))
    found = cifar.load_pickle(str(path))
    if isinstance(value, np.ndarray | np.generic):
        np.testing.assert_array_equal(found, value)
        assert found.dtype == value.dtype
    elif protocol == 4 or isinstance(value, set):
        assert found == value


def test_objects_in_arrays_are_refused(tmp_path):
    path = tmp_path / 'objects'
    path.write_bytes(pickle.dumps(np.array([{}, []], object)))
    with pytest.raises(ValueError, match='an array of objects'):
        cifar.load_pickle(str(path))


@pytest.mark.parametrize(
    ('damage', 'expected'),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:99]), 'plain data'),
        (lambda path: path.write_bytes(pickle.dumps({b'a': 1})), 'no cifar10'),
        (lambda path: path.unlink(), 'is not complete: no data_batch_3'),
        (
            lambda path: path.write_bytes(
                pickle.dumps(
                    {
                        b'data': np.zeros((1, 3072), np.uint8),
                        b'labels': [10],
                    },
                    protocol=2,
                )
            ),
            'has labels 10 to 10, legal are 0 to 9',
        ),
    ],
)
def test_damage_is_named(tmp_path, damage, expected):
    _write(tmp_path / 'cifar-10-batches-py', 'cifar10', False)
    damage(tmp_path / 'cifar-10-batches-py' / 'data_batch_3')
    with pytest.raises(ValueError, match=expected) as caught:
        datasets.open_dataset(str(tmp_path), None)
    assert '\n' not in str(caught.value)


def test_truncated_binary_file(tmp_path):
    _write(tmp_path / 'cifar-100-binary', 'cifar100', True)
    path = tmp_path / 'cifar-100-binary' / 'train.bin'
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(ValueError, match=r'train\.bin has .* truncated'):
        datasets.open_dataset(str(tmp_path), None)


def test_both_cifars_in_one_folder_are_told_apart_by_name(tmp_path):
    _write(tmp_path / 'cifar-10-batches-py', 'cifar10', False)
    _write(tmp_path / 'cifar-100-python', 'cifar100', False)
    for name in ('cifar10', 'cifar100'):
        assert datasets.open_dataset(str(tmp_path), name).name == name
    with pytest.raises(ValueError, match='choose with --data_name'):
        datasets.open_dataset(str(tmp_path), None)
