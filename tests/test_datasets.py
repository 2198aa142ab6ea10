"""Datasets are recognised, counted and checked; what is wrong is named."""

import os
import subprocess
import sys
import tempfile

import input_helpers as helpers
import numpy as np
import pytest

from kbench import datasets
from kbench.datasets import digits, tfrecords


def test_digits_are_split_the_same_way_everywhere():
    dataset = datasets.open_dataset(None, 'digits')
    assert dataset.num_classes == 10
    assert dataset.num_examples('train') == 1442
    assert dataset.num_examples('validation') == 355
    assert dataset.num_examples('test') == 355
    train, held_out = dataset.split('train'), dataset.split('validation')
    assert train.images.shape == (1442, 8, 8, 3)
    assert train.images.dtype == np.uint8
    assert train.images.max() == 255
    counts = np.bincount(held_out.labels)
    assert counts.min() >= 34 and counts.max() <= 37
    pictures = np.concatenate([train.images, held_out.images])
    assert len(pictures) == 1797
    # Nothing is lost: the sixteen levels come back.
    assert len(np.unique(pictures)) == 17
    again = digits.load_digits()['validation'][1]
    np.testing.assert_array_equal(held_out.labels, again)


@pytest.mark.parametrize('layout', ['.', 'sub'])
@pytest.mark.parametrize('files', [1, 3])
def test_shards_are_counted(tmp_path, layout, files):
    for split, count in (('train', 23), ('validation', 11)):
        folder = tmp_path / split if layout == 'sub' else tmp_path
        folder.mkdir(exist_ok=True)
        helpers.write_tagged(folder, split, count, files)
    dataset = datasets.open_dataset(str(tmp_path), None)
    assert dataset.kind == 'tfrecord'
    assert dataset.num_examples('train') == 23
    assert dataset.num_examples('validation') == 11
    assert len(dataset.split('train').files) == files
    assert (dataset.num_classes, dataset.label_offset) == (10, 1)


def test_the_count_is_kept_beside_the_data(tmp_path):
    helpers.write_tagged(tmp_path, 'train', 5, 1)
    datasets.open_dataset(str(tmp_path), None)
    index = tmp_path / tfrecords.INDEX_NAME
    # As readable as what the process writes otherwise: folders are shared.
    (tmp_path / 'other').write_text('')
    assert index.stat().st_mode == (tmp_path / 'other').stat().st_mode
    (tmp_path / 'other').unlink()
    assert datasets.open_dataset(str(tmp_path), None).num_classes == 5
    # A shard that changed is counted again.
    helpers.write_tagged(tmp_path, 'train', 7, 1)
    assert datasets.open_dataset(str(tmp_path), None).num_classes == 7
    (tmp_path / tfrecords.INDEX_NAME).write_text('not json')
    assert datasets.open_dataset(str(tmp_path), None).num_classes == 7


@pytest.mark.parametrize(
    ('labels', 'name', 'expected'),
    [
        ([1, 2, 3], None, (3, 1)),
        ([0, 1, 2], None, (3, 0)),
        ([1, 1000], None, (1000, 1)),
        ([0, 999], None, (1000, 0)),
        ([3, 998], None, (1000, 1)),
        ([5, 7], 'imagenet', (1000, 1)),
    ],
)
def test_label_convention_is_read_off_the_labels(
    tmp_path, labels, name, expected
):
    png = helpers.tagged_images(1)[0]
    helpers.write_shard(
        tmp_path / 'train-00000-of-00001',
        [helpers.make_example(png, label) for label in labels],
    )
    dataset = datasets.open_dataset(str(tmp_path), name)
    assert (dataset.num_classes, dataset.label_offset) == expected


def test_the_user_overrides_the_numbers(tmp_path):
    helpers.write_tagged(tmp_path, 'train', 20, 2)
    helpers.write_tagged(tmp_path, 'validation', 20, 2)
    dataset = datasets.open_dataset(
        str(tmp_path),
        None,
        num_classes=17,
        num_train_examples=1000,
        num_eval_examples=7,
    )
    assert dataset.num_classes == 17
    assert dataset.num_examples('train') == 1000
    assert dataset.split('train').num_records == 20
    assert dataset.num_examples('validation') == 7
    with pytest.raises(ValueError, match='num_eval_examples is 21, legal'):
        datasets.open_dataset(str(tmp_path), None, num_eval_examples=21)


def test_bad_folders_are_refused_in_one_line(tmp_path):
    empty = tmp_path / 'empty'
    empty.mkdir()
    file = tmp_path / 'file'
    file.write_text('x')
    other = tmp_path / 'other'
    other.mkdir()
    (other / 'notes.txt').write_text('x')
    zero = tmp_path / 'zero'
    zero.mkdir()
    for i in range(2):
        (zero / f'train-0000{i}-of-00002').touch()
    cases = [
        (tmp_path / 'absent', 'does not exist'),
        (file, 'is not a folder'),
        (empty, 'is empty: expected'),
        (other, 'holds nothing that kbench reads: expected'),
        (zero, r'all 2 train shards in .*zero are empty'),
    ]
    for folder, expected in cases:
        for refuse in (datasets.check_data_dir, datasets.open_dataset):
            with pytest.raises(ValueError, match=expected) as caught:
                refuse(str(folder), None)
            assert str(folder) in str(caught.value)
            assert '\n' not in str(caught.value)


def _run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, '-c', code],
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )


def test_unreadable_folder():
    # Root may read everything, so the check runs as nobody.
    drop = 'os.geteuid() or os.setuid(65534)'
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0)
        done = _run(
            f'import os; from kbench import datasets; {drop};'
            f'datasets.check_data_dir({folder!r}, None)'
        )
        os.chmod(folder, 0o700)
    assert done.stderr.strip().endswith(
        f'UserError: data_dir {folder} cannot be read: Permission denied'
    )


def test_no_validation_shards(tmp_path):
    helpers.write_tagged(tmp_path, 'train', 3, 1)
    datasets.check_data_dir(str(tmp_path), None, 'train')
    with pytest.raises(ValueError, match='no validation shards in data_dir'):
        datasets.check_data_dir(str(tmp_path), None, 'validation')
    dataset = datasets.open_dataset(str(tmp_path), None)
    with pytest.raises(ValueError, match=r'expected validation-\* shards'):
        dataset.split('validation')


def test_real_data_need_a_folder():
    with pytest.raises(ValueError, match='imagenet needs --data_dir'):
        datasets.open_dataset(None, 'imagenet')


def test_labels_out_of_range_name_the_shard(tmp_path):
    helpers.write_tagged(tmp_path, 'train', 10, 2)
    with pytest.raises(ValueError, match='has label 10, legal are 1 to 9'):
        datasets.open_dataset(str(tmp_path), None, num_classes=9)


def test_damaged_shards_are_named(tmp_path):
    helpers.write_tagged(tmp_path, 'train', 4, 1)
    path = tmp_path / 'train-00000-of-00001'
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    with pytest.raises(ValueError, match=r'train-00000.*is truncated'):
        datasets.open_dataset(str(tmp_path), None)
    path.write_bytes(b'this is no TFRecord file at all')
    with pytest.raises(ValueError, match='not a TFRecord file'):
        datasets.open_dataset(str(tmp_path), None)
    helpers.write_shard(path, [b'no example'])
    with pytest.raises(ValueError, match='record 0 is no image'):
        datasets.open_dataset(str(tmp_path), None)


def test_some_empty_shards_and_gaps_are_warned_of(tmp_path, caplog):
    helpers.write_tagged(tmp_path, 'train', 9, 4)
    (tmp_path / 'train-00001-of-00004').write_bytes(b'')
    (tmp_path / 'train-00002-of-00004').unlink()
    dataset = datasets.open_dataset(str(tmp_path), None)
    assert len(dataset.split('train').files) == 2
    assert 'empty shards' in caplog.text
    assert 'train-00001-of-00004' in caplog.text
    assert '1 of 4 train shards are missing' in caplog.text
    assert 'the first is number 2' in caplog.text


def test_the_folder_is_checked_without_tensorflow(tmp_path):
    helpers.write_tagged(tmp_path, 'train', 3, 1)
    code = (
        'import sys; from kbench import datasets;'
        f'datasets.check_data_dir({str(tmp_path)!r}, None);'
        'assert "tensorflow" not in sys.modules'
    )
    assert _run(code).returncode == 0
