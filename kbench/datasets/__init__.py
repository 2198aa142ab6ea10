"""Recognises, opens and describes a dataset.

    dataset = datasets.open_dataset('/data/imagenet', None)
    dataset.num_classes, dataset.num_examples('train')

What a folder holds is read off its files, never off its path. Importing this
package does not import TensorFlow.
"""

import dataclasses
import os

from kbench import errors
from kbench.datasets import (
    cifar,
    digits,
    image_folder,
    spec,
    tfds,
    tfrecords,
)

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
        UserError: the folder is absent, empty or unreadable, holds something
            else, its shards are all empty, or none belong to the split.
    """
    if data_dir is None:
        _check_embedded(data_name)
        return
    _check_readable(data_dir)
    kind = recognise(data_dir, data_name)
    if kind == 'tfds':
        tfds.choose(data_dir, data_name, tfds.find_prepared(data_dir))
    if kind != 'tfrecord':
        return
    wanted = spec.SPLIT_NAMES.get(split, split)
    if not tfrecords.check_shards(data_dir, wanted):
        raise errors.UserError(
            f'no {wanted} shards in data_dir {data_dir}: expected files '
            f'{wanted}-*, there or in a folder {wanted}'
        )


def _check_embedded(data_name: str | None) -> None:
    if data_name not in EMBEDDED:
        named = f'data_name {data_name}' if data_name else 'real data'
        raise errors.UserError(
            f'{named} needs --data_dir; without a folder only '
            f'{", ".join(EMBEDDED)} can be read'
        )


def _check_readable(data_dir: str) -> None:
    if not os.path.exists(data_dir):
        raise errors.UserError(f'data_dir {data_dir} does not exist')
    if not os.path.isdir(data_dir):
        raise errors.UserError(f'data_dir {data_dir} is not a folder')
    try:
        names = os.listdir(data_dir)
    except OSError as error:
        raise errors.UserError(
            f'data_dir {data_dir} cannot be read: {error.strerror}'
        ) from None
    if not names:
        raise errors.UserError(
            f'data_dir {data_dir} is empty: expected {_EXPECTED}'
        )


def recognise(data_dir: str, data_name: str | None) -> str:
    """Returns what a folder holds: a name of `_KINDS`.

    Raises:
        UserError: nothing that kbench reads, something else than
            `data_name`, or more than one thing.
    """
    found = [kind for kind, test in _KINDS.items() if test(data_dir)]
    if data_name is not None:
        return _recognise_named(data_dir, data_name, found)
    if not found:
        raise errors.UserError(
            f'data_dir {data_dir} holds nothing that kbench reads'
            f'{tfds.archives_hint(data_dir)}: expected {_EXPECTED}'
        )
    if len(found) > 1:
        raise errors.UserError(
            f'data_dir {data_dir} holds more than one dataset '
            f'({", ".join(found)}): choose with --data_name, one of '
            f'{", ".join(NAMES)}'
        )
    return found[0]


def _recognise_named(data_dir: str, data_name: str, found: list[str]) -> str:
    wanted = _WANTED.get(data_name, ('tfds',))
    fitting = [kind for kind in wanted if kind in found]
    if fitting:
        return fitting[0]
    holds = ', '.join(_DESCRIPTIONS[kind] for kind in found)
    raise errors.UserError(
        f'data_dir {data_dir} holds no {data_name}'
        f'{tfds.archives_hint(data_dir)}: expected '
        f'{" or ".join(_DESCRIPTIONS[kind] for kind in wanted)}'
        f'{"; it holds " + holds if holds else ""}'
    )


def _has_shards(data_dir: str) -> bool:
    return any(
        tfrecords.find_shards(data_dir, split)
        for split in (spec.TRAIN, spec.VALIDATION)
    )


# What a folder may hold, and how to see it.
_KINDS = {
    'tfrecord': _has_shards,
    'cifar': lambda data_dir: bool(cifar.find_cifar(data_dir)),
    'tfds': lambda data_dir: bool(tfds.find_prepared(data_dir)),
    'image_folder': image_folder.is_image_folder,
}
_DESCRIPTIONS = {
    'tfrecord': 'TFRecord shards train-* and validation-*',
    'cifar': 'a CIFAR folder (python or binary version)',
    'tfds': 'a prepared TFDS dataset',
    'image_folder': 'a sub-folder of images for each class',
}
_EXPECTED = ', or '.join(_DESCRIPTIONS.values())
# Which kinds can stand for a name, the likelier first; any other name is one
# of TFDS.
_WANTED = {
    'imagenet': ('tfrecord',),
    'cifar10': ('cifar', 'tfds', 'tfrecord'),
    'cifar100': ('cifar', 'tfds', 'tfrecord'),
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
    download: bool = False,
) -> Dataset:
    """Opens a dataset: what it holds, how much of it, how it is labelled.

    Args:
        data_dir: the folder; None for `digits`.
        data_name: one of `NAMES`, or of TFDS: `name[/config][:version]`; None
            to recognise it.
        num_classes: overrides the number of classes.
        num_train_examples: overrides the length of an epoch.
        num_eval_examples: evaluate only so many of the held-out images.
        download: have TFDS download what is not there; never otherwise.

    Raises:
        UserError: in one line, what is wrong with which folder or file.
    """
    if data_dir is None:
        _check_embedded(data_name)
        dataset = digits.open_digits(num_classes)
    else:
        if download and not _is_prepared(data_dir, data_name):
            os.makedirs(data_dir, exist_ok=True)
            tfds.download(data_dir, data_name)
        _check_readable(data_dir)
        opener = _OPENERS[recognise(data_dir, data_name)]
        dataset = opener(data_dir, data_name, num_classes)
    return _override(
        dataset,
        {
            spec.TRAIN: ('num_train_examples', num_train_examples),
            spec.VALIDATION: ('num_eval_examples', num_eval_examples),
        },
    )


_OPENERS = {
    'tfrecord': tfrecords.open_tfrecords,
    'cifar': cifar.open_cifar,
    'tfds': tfds.open_tfds,
    'image_folder': image_folder.open_image_folder,
}


def _is_prepared(data_dir: str, data_name: str | None) -> bool:
    if data_name is None or data_name in ('digits', 'image_folder'):
        raise errors.UserError(
            f'download needs a data_name that TFDS knows, not {data_name}'
        )
    name, config, version = tfds.split_name(data_name)
    return os.path.isdir(data_dir) and any(
        each.name == name
        and config in ('', each.config)
        and version in ('', each.version)
        for each in tfds.find_prepared(data_dir)
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
            raise errors.UserError(
                f'{flag} is {count}, legal are 1 to {held}: {where} holds '
                f'{held} {name} images'
            )
        splits[name] = dataclasses.replace(splits[name], num_examples=count)
    return dataclasses.replace(dataset, splits=splits)
