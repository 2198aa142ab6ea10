"""Recognises, opens and describes a dataset.

    dataset = datasets.open_dataset('/data/imagenet', None)
    dataset.num_classes, dataset.num_examples('train')

What a folder holds is read off its files, never off its path. Importing this
package does not import TensorFlow.
"""

import dataclasses
import os

from kbench.datasets import digits, image_folder, spec, tfrecords

Dataset = spec.Dataset
Split = spec.Split
NAMES = ('imagenet', 'cifar10', 'cifar100', 'digits', 'image_folder')
EMBEDDED = ('digits',)


def check_data_dir(
    data_dir: str | None, data_name: str | None, split: str = spec.TRAIN
) -> None:
    """Looks at the folder alone: cheap, and without TensorFlow.

    Args:
        data_dir: the folder, None for an embedded dataset.
        data_name: what it holds, None to recognise it.
        split: the split that is going to be read.

    Raises:
        ValueError: the folder is absent, empty or unreadable, holds something
            else, its shards are all empty, or none belong to the split.
    """
    if data_dir is None:
        _check_embedded(data_name)
        return
    _check_readable(data_dir)
    if recognise(data_dir, data_name) != 'tfrecord':
        return
    wanted = spec.SPLIT_NAMES.get(split, split)
    if not tfrecords.check_shards(data_dir, wanted):
        raise ValueError(
            f'no {wanted} shards in data_dir {data_dir}: expected files '
            f'{wanted}-*, there or in a folder {wanted}'
        )


def _check_embedded(data_name: str | None) -> None:
    if data_name not in EMBEDDED:
        named = f'data_name {data_name}' if data_name else 'real data'
        raise ValueError(
            f'{named} needs --data_dir; without a folder only '
            f'{", ".join(EMBEDDED)} can be read'
        )


def _check_readable(data_dir: str) -> None:
    if not os.path.exists(data_dir):
        raise ValueError(f'data_dir {data_dir} does not exist')
    if not os.path.isdir(data_dir):
        raise ValueError(f'data_dir {data_dir} is not a folder')
    try:
        names = os.listdir(data_dir)
    except OSError as error:
        raise ValueError(
            f'data_dir {data_dir} cannot be read: {error.strerror}'
        ) from None
    if not names:
        raise ValueError(f'data_dir {data_dir} is empty: expected {_EXPECTED}')


def recognise(data_dir: str, data_name: str | None) -> str:
    """Returns what a folder holds: a name of `_KINDS`.

    Raises:
        ValueError: nothing that kbench reads, something else than
            `data_name`, or more than one thing.
    """
    found = [kind for kind, test in _KINDS.items() if test(data_dir)]
    wanted = data_name and _WANTED.get(data_name)
    if wanted:
        fitting = [kind for kind in wanted if kind in found]
        if not fitting:
            holds = f'; it holds {", ".join(found)}' if found else ''
            raise ValueError(
                f'data_dir {data_dir} holds no {data_name}: expected '
                f'{" or ".join(_DESCRIPTIONS[kind] for kind in wanted)}{holds}'
            )
        return fitting[0]
    if not found:
        raise ValueError(
            f'data_dir {data_dir} holds nothing that kbench reads: expected '
            f'{_EXPECTED}'
        )
    if len(found) > 1:
        raise ValueError(
            f'data_dir {data_dir} holds more than one dataset '
            f'({", ".join(found)}): choose with --data_name, one of '
            f'{", ".join(NAMES)}'
        )
    return found[0]


def _has_shards(data_dir: str) -> bool:
    return any(
        tfrecords.find_shards(data_dir, split)
        for split in (spec.TRAIN, spec.VALIDATION)
    )


# What a folder may hold, and how to see it.
_KINDS = {
    'tfrecord': _has_shards,
    'image_folder': image_folder.is_image_folder,
}
_DESCRIPTIONS = {
    'tfrecord': 'TFRecord shards train-* and validation-*',
    'image_folder': 'a sub-folder of images for each class',
}
_EXPECTED = ', or '.join(_DESCRIPTIONS.values())
# Which kinds can stand for a name, the likelier first.
_WANTED = {
    'imagenet': ('tfrecord',),
    'digits': ('tfrecord',),
    'image_folder': ('image_folder', 'tfrecord'),
}


def open_dataset(
    data_dir: str | None,
    data_name: str | None,
    *,
    num_classes: int | None = None,
    num_train_examples: int | None = None,
    num_eval_examples: int | None = None,
) -> Dataset:
    """Opens a dataset: what it holds, how much of it, how it is labelled.

    Args:
        data_dir: the folder; None for `digits`.
        data_name: one of `NAMES`; None to recognise it.
        num_classes: overrides the number of classes.
        num_train_examples: overrides the length of an epoch.
        num_eval_examples: evaluate only so many of the held-out images.

    Raises:
        ValueError: in one line, what is wrong with which folder or file.
    """
    if data_dir is None:
        _check_embedded(data_name)
        dataset = digits.open_digits(num_classes)
    else:
        _check_readable(data_dir)
        if recognise(data_dir, data_name) == 'tfrecord':
            dataset = tfrecords.open_tfrecords(data_dir, data_name, num_classes)
        else:
            dataset = image_folder.open_image_folder(data_dir, num_classes)
    return _override(
        dataset,
        {
            spec.TRAIN: ('num_train_examples', num_train_examples),
            spec.VALIDATION: ('num_eval_examples', num_eval_examples),
        },
    )


def _override(
    dataset: Dataset, counts: dict[str, tuple[str, int | None]]
) -> Dataset:
    """Lets the user's numbers stand for the counted ones.

    An epoch of the schedule may be longer than the data (a part of ImageNet
    trained on ImageNet's schedule); evaluation cannot invent images.
    """
    splits = dict(dataset.splits)
    for name, (flag, count) in counts.items():
        if count is None or name not in splits:
            continue
        held = splits[name].num_records
        where = dataset.data_dir or dataset.name
        if count < 1 or (name != spec.TRAIN and count > held):
            raise ValueError(
                f'{flag} is {count}, legal are 1 to {held}: {where} holds '
                f'{held} {name} images'
            )
        splits[name] = dataclasses.replace(splits[name], num_examples=count)
    return dataclasses.replace(dataset, splits=splits)
