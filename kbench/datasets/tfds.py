"""Datasets that tensorflow-datasets prepared.

Finding them is a look at folders; only opening imports TFDS, which is slow to
import. Records are parsed by TFDS's own features, images stay encoded.
"""

import dataclasses
import logging
import os
import re
from typing import Any

from kbench import errors
from kbench.datasets import spec

_INFO = 'dataset_info.json'
_VERSION = re.compile(r'^\d+\.\d+\.\d+$')
_ARCHIVES = ('.tar', '.tgz', '.gz', '.zip', '.bz2', '.7z', '.rar', '.xz')
# Below this side, in pixels, images are for the CIFAR models.
_SMALL_SIDE = 64
# A mirrored digit or letter is another one or none.
_NO_MIRROR = ('mnist', 'digit', 'svhn', 'letters', 'omniglot')


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A prepared dataset: `path` holds its dataset_info.json."""

    name: str
    config: str
    version: str
    path: str

    def __str__(self) -> str:
        config = f'/{self.config}' if self.config else ''
        return f'{self.name}{config}:{self.version}'


def find_prepared(data_dir: str) -> list[Prepared]:
    """Finds prepared datasets in `data_dir`, which may also be one itself."""
    found = []
    top = os.path.abspath(data_dir)
    for folder, names, files in os.walk(top):
        depth = os.path.relpath(folder, top).count(os.sep)
        if _INFO in files:
            found.append(_describe(folder))
        # At most name/config/version below the folder that was given.
        if _INFO in files or depth >= 2:
            names.clear()
        names[:] = [
            name
            for name in sorted(names)
            if not name.startswith('.') and name != 'downloads'
        ][:1000]
    return [each for each in found if each is not None]


def _describe(path: str) -> Prepared | None:
    """Reads name, configuration and version off the folders' names."""
    parts = path.split(os.sep)
    if not _VERSION.match(parts[-1]):
        return Prepared(parts[-1], '', '0.0.0', path)
    above, before = parts[-2], parts[-3] if len(parts) > 2 else ''
    name = _info_name(path)
    if name and name == before and name != above:
        return Prepared(name, above, parts[-1], path)
    return Prepared(name or above, '', parts[-1], path)


def _info_name(path: str) -> str:
    import json

    try:
        with open(os.path.join(path, _INFO)) as file:
            return str(json.load(file).get('name', ''))
    except (OSError, ValueError, AttributeError):
        return ''


def split_name(data_name: str) -> tuple[str, str, str]:
    """Splits `name[/config][:version]` into its three parts."""
    name, _, version = data_name.partition(':')
    name, _, config = name.partition('/')
    return name, config, version


def choose(
    data_dir: str, data_name: str | None, found: list[Prepared]
) -> Prepared:
    """Returns the dataset that the name means; the newest version of it.

    Raises:
        UserError: there is none, or more than one fits; lists the choices.
    """
    listed = ', '.join(str(each) for each in found[:10]) or 'none'
    if data_name is None:
        names = {(each.name, each.config) for each in found}
        if len(names) != 1:
            raise errors.UserError(
                f'data_dir {data_dir} holds several TFDS datasets: choose '
                f'with --data_name, one of {listed}'
            )
        fitting = found
    else:
        name, config, version = split_name(data_name)
        fitting = [
            each
            for each in found
            if each.name == name
            and (not config or each.config == config)
            and (not version or each.version == version)
        ]
        if len({each.config for each in fitting}) > 1:
            raise errors.UserError(
                f'data_name {data_name} fits several configurations in '
                f'{data_dir}: choose one of {listed}'
            )
    if not fitting:
        raise errors.UserError(
            f'data_dir {data_dir} holds no TFDS dataset {data_name}'
            f'{archives_hint(data_dir)}; prepared are: {listed}'
        )
    return max(
        fitting,
        key=lambda each: [int(part) for part in each.version.split('.')],
    )


def archives_hint(data_dir: str) -> str:
    """Says so where a folder has archives instead of a dataset."""
    for folder in (data_dir, os.path.join(data_dir, 'downloads')):
        if os.path.isdir(folder):
            for name in sorted(os.listdir(folder)):
                if name.endswith(_ARCHIVES):
                    return (
                        f' but raw archives such as {name}: prepare it with '
                        'TFDS (--download does it)'
                    )
    return ''


def download(data_dir: str, data_name: str) -> None:
    """Has TFDS download and prepare a dataset.

    Raises:
        UserError: TFDS does not know it or cannot get it.
    """
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder(data_name, data_dir=data_dir, try_gcs=False)
        builder.download_and_prepare()
    except Exception as error:
        # TFDS, its sources and the network raise errors of many kinds.
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise errors.UserError(
            f'TFDS cannot download and prepare {data_name}: {reason[0]}'
        ) from None


def open_tfds(
    data_dir: str, data_name: str | None, num_classes: int | None
) -> spec.Dataset:
    """Opens a dataset that TFDS has prepared in `data_dir`.

    Raises:
        UserError: there is no such dataset, or it is none of images with one
            label each.
    """
    chosen = choose(data_dir, data_name, find_prepared(data_dir))
    logging.getLogger('absl').setLevel(logging.WARNING)
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(chosen.path)
    image_key, label_key = _find_keys(tfds, builder.info, chosen)
    classes = builder.info.features[label_key].num_classes
    if num_classes is not None and num_classes < classes:
        raise errors.UserError(
            f'num_classes is {num_classes}, legal for {chosen} are {classes} '
            'and more'
        )
    shape = builder.info.features[image_key].shape
    small = None not in shape[:2] and max(shape[:2]) <= _SMALL_SIDE
    return spec.Dataset(
        name=chosen.name,
        kind='tfds',
        data_dir=data_dir,
        num_classes=num_classes or classes,
        image_dataset='cifar10' if small else 'imagenet',
        mirror=not any(word in chosen.name for word in _NO_MIRROR),
        class_names=tuple(builder.info.features[label_key].names or ()),
        splits=_read_splits(builder.info, chosen),
        parser=_make_parser(tfds, builder.info, image_key, label_key),
    )


def _find_keys(tfds: Any, info: Any, chosen: Prepared) -> tuple[str, str]:
    """Returns the names of the image and of the label."""
    features = info.features
    images, labels = [], []
    for key in features:
        if isinstance(features[key], tfds.features.Image):
            images.append(key)
        elif isinstance(features[key], tfds.features.ClassLabel):
            labels.append(key)
    for key in info.supervised_keys or ():
        if key in images:
            images = [key]
        elif key in labels:
            labels = [key]
    if len(images) != 1 or not labels:
        raise errors.UserError(
            f'TFDS dataset {chosen} has the features '
            f'{", ".join(features)}: expected one image with one class label'
        )
    # Where there are coarse labels too, `label` is the fine one.
    return images[0], 'label' if 'label' in labels else labels[0]


def _read_splits(info: Any, chosen: Prepared) -> dict[str, spec.Split]:
    splits = {}
    for name, split in info.splits.items():
        if not split.num_examples:
            continue
        pairs = [
            (str(path), count)
            for path, count in zip(
                split.filepaths,
                [length for length in split.shard_lengths if length],
                strict=True,
            )
        ]
        if 'tfrecord' not in os.path.basename(pairs[0][0]):
            raise errors.UserError(
                f'{chosen} is stored as {os.path.basename(pairs[0][0])}: '
                'expected TFRecord files; prepare it with '
                'file_format=tfrecord'
            )
        for path, _ in pairs:
            if not os.path.exists(path) or os.path.getsize(path) == 0:
                raise errors.UserError(
                    f'{path} of TFDS dataset {chosen} is absent or empty: '
                    'prepare it again'
                )
        splits[name] = spec.Split(
            name=name,
            num_examples=split.num_examples,
            files=tuple(path for path, _ in pairs),
            file_counts=tuple(count for _, count in pairs),
        )
    if not splits:
        raise errors.UserError(f'TFDS dataset {chosen} has no examples')
    return splits


def _make_parser(tfds: Any, info: Any, image_key: str, label_key: str) -> Any:
    """Returns what parses a record: image bytes and label."""
    wanted = tfds.decode.PartialDecoding(
        {image_key: True, label_key: True}
    ).extract_features(info.features)
    decoders = {image_key: tfds.decode.SkipDecoding()}

    def parse(serialized: Any) -> tuple[Any, Any]:
        example = wanted.deserialize_example(serialized, decoders=decoders)
        return example[image_key], example[label_key]

    return parse
