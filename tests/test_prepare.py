"""`kbench prepare` writes whole shards, once."""

import json
import os

import input_helpers as helpers
import numpy as np
import pytest
import tensorflow as tf

from kbench import datasets
from kbench.commands import prepare
from kbench.datasets import writer


def _snapshot(folder) -> dict:
    return {
        name: (os.stat(folder / name).st_mtime_ns, (folder / name).read_bytes())
        for name in os.listdir(folder)
    }


def test_digits_come_back_exactly_and_twice_changes_nothing(tmp_path):
    said = []
    arguments = ['--data_name=digits', f'--output_dir={tmp_path}']
    assert prepare.main(arguments, said.append) == 0
    before = _snapshot(tmp_path)
    assert prepare.main(arguments, said.append) == 0
    assert 'complete already' in said[-1]
    assert _snapshot(tmp_path) == before

    dataset = datasets.open_dataset(str(tmp_path), None)
    assert dataset.name == 'digits' and dataset.num_classes == 10
    assert dataset.image_dataset == 'cifar10' and not dataset.mirror
    assert dataset.class_names == tuple('0123456789')
    embedded = datasets.open_dataset(None, 'digits')
    for split in ('train', 'validation'):
        assert dataset.num_examples(split) == embedded.num_examples(split)
        part = embedded.split(split)
        pixels = {
            image.tobytes(): label
            for image, label in zip(part.images, part.labels, strict=True)
        }
        for record in tf.data.TFRecordDataset(dataset.split(split).files):
            features = tf.train.Example.FromString(
                record.numpy()
            ).features.feature
            encoded = features['image/encoded'].bytes_list.value[0]
            image = tf.io.decode_png(encoded, 3).numpy()
            label = features['image/class/label'].int64_list.value[0]
            assert pixels[image.tobytes()] == label - 1
            assert features['image/format'].bytes_list.value[0] == b'PNG'
            assert features['image/height'].int64_list.value[0] == 8


def _make_images(folder, per_class: int = 10) -> None:
    for number, name in enumerate(('cat', 'dog')):
        (folder / name).mkdir(parents=True)
        for i in range(per_class):
            image = helpers.photo('china').resize((60 + i, 50 + number))
            (folder / name / f'{i:02d}.jpg').write_bytes(helpers.encode(image))


def test_folder_of_images(tmp_path):
    _make_images(tmp_path / 'in')
    out = tmp_path / 'out'
    prepare.main(
        [
            f'--image_dir={tmp_path / "in"}',
            f'--output_dir={out}',
            '--num_shards=3',
            '--validation_fraction=0.2',
        ]
    )
    dataset = datasets.open_dataset(str(out), None)
    assert dataset.class_names == ('cat', 'dog')
    assert dataset.num_examples('train') == 16
    assert dataset.num_examples('validation') == 4
    assert len(dataset.split('train').files) == 3
    assert sorted(os.listdir(out))[-1] == 'validation-00000-of-00001'
    record = next(iter(tf.data.TFRecordDataset(dataset.split('train').files)))
    features = tf.train.Example.FromString(record.numpy()).features.feature
    name = features['image/filename'].bytes_list.value[0].decode()
    # The bytes of the file, not an image encoded anew.
    original = (tmp_path / 'in' / name).read_bytes()
    assert features['image/encoded'].bytes_list.value[0] == original
    assert features['image/class/text'].bytes_list.value[0].decode() in name


def test_folder_with_splits_of_its_own(tmp_path):
    _make_images(tmp_path / 'in' / 'train', 3)
    _make_images(tmp_path / 'in' / 'val', 2)
    out = tmp_path / 'out'
    prepare.main([f'--image_dir={tmp_path / "in"}', f'--output_dir={out}'])
    dataset = datasets.open_dataset(str(out), None)
    assert dataset.num_examples('train') == 6
    assert dataset.num_examples('validation') == 4


def test_an_interrupted_run_leaves_no_half_shard(tmp_path, monkeypatch):
    arguments = [
        '--data_name=digits',
        f'--output_dir={tmp_path}',
        '--num_shards=4',
    ]
    real = writer._make_example
    calls = []

    def stop_in_the_third_shard(*values: object) -> bytes:
        calls.append(values)
        if len(calls) > 800:
            raise KeyboardInterrupt
        return real(*values)

    monkeypatch.setattr(writer, '_make_example', stop_in_the_third_shard)
    with pytest.raises(KeyboardInterrupt):
        prepare.main(arguments)
    names = [n for n in os.listdir(tmp_path) if not n.startswith('.')]
    final = sorted(name for name in names if not name.endswith('.tmp'))
    assert final == ['train-00000-of-00004', 'train-00001-of-00004']
    for name in final:
        whole = list(tf.data.TFRecordDataset(str(tmp_path / name)))
        assert len(whole) in (360, 361)
    first = _snapshot(tmp_path)[final[0]]

    monkeypatch.setattr(writer, '_make_example', real)
    prepare.main(arguments)
    assert _snapshot(tmp_path)[final[0]] == first
    assert not [n for n in os.listdir(tmp_path) if n.endswith('.tmp')]
    assert (
        datasets.open_dataset(str(tmp_path), None).num_examples('train') == 1442
    )
    metadata = json.loads((tmp_path / 'dataset.json').read_text())
    assert metadata['num_examples'] == {'train': 1442, 'validation': 355}


@pytest.mark.parametrize(
    ('arguments', 'expected'),
    [
        (['--output_dir=OUT'], 'one of the arguments'),
        (['--data_name=digits'], '--output_dir'),
        (['--data_name=mnist', '--output_dir=OUT'], "choose from '?digits"),
        (['--image_dir=/absent', '--output_dir=OUT'], 'not a folder'),
        (['--image_dir=IN', '--output_dir=OUT'], 'holds no images'),
        (
            ['--data_name=digits', '--output_dir=OUT', '--num_shards=0'],
            'num_shards is 0, legal are 1 to 99999',
        ),
        (
            [
                '--image_dir=IN',
                '--output_dir=OUT',
                '--validation_fraction=1.5',
            ],
            'validation_fraction is 1.5, legal are',
        ),
        (['--data_name=digits', '--output_dir=FILE'], 'cannot be written'),
        (['--data_name=digits', '--output_dir=OTHER'], 'holds other shards'),
    ],
)
def test_refused_in_one_line(tmp_path, arguments, expected):
    (tmp_path / 'IN').mkdir()
    (tmp_path / 'FILE').write_text('x')
    (tmp_path / 'OTHER').mkdir()
    helpers.write_tagged(tmp_path / 'OTHER', 'train', 2, 1)
    arguments = [
        argument.replace(f'={name}', f'={tmp_path / name}')
        if name.isupper()
        else argument
        for argument in arguments
        for name in (argument.split('=')[-1],)
    ]
    with pytest.raises(ValueError, match=expected) as caught:
        prepare.main(arguments)
    assert '\n' not in str(caught.value)


def test_a_broken_image_is_named(tmp_path):
    _make_images(tmp_path / 'in', 2)
    (tmp_path / 'in' / 'dog' / 'bad.jpg').write_bytes(
        helpers.photo_bytes('china')[:9000]
    )
    with pytest.raises(ValueError, match=r'dog.bad\.jpg cannot be decoded'):
        prepare.main(
            [f'--image_dir={tmp_path / "in"}', f'--output_dir={tmp_path}/out']
        )


def test_shards_are_a_fair_sample(tmp_path):
    prepare.main(['--data_name=digits', f'--output_dir={tmp_path}'])
    path = str(tmp_path / 'train-00000-of-00002')
    labels = [
        tf.train.Example.FromString(record.numpy())
        .features.feature['image/class/label']
        .int64_list.value[0]
        for record in tf.data.TFRecordDataset(path)
    ]
    assert np.bincount(labels)[1:].min() > 50
