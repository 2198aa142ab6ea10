"""Writes images as TFRecord shards, whole ones or none.

A shard gets its final name when it is complete and on the disk; dataset.json
comes last, so a folder with a dataset.json is whole.
"""

import dataclasses
import hashlib
import json
import os
import random
from collections.abc import Callable

from kbench import errors, files
from kbench.datasets import spec, tfrecords

# Below this side, in pixels, images are for the CIFAR models.
_SMALL_SIDE = 64
_SHARD_BYTES = 100_000_000
# Stored labels count from 1, as in ImageNet's shards.
LABEL_OFFSET = 1
# Holds the fingerprint while the folder is unfinished.
_OWNER_NAME = '.kbench_prepare'


@dataclasses.dataclass(frozen=True)
class Item:
    """One image to be written.

    Attributes:
        name: of the file, relative to its folder.
        label: 0-based.
        text: name of the class.
        path: where the encoded bytes are, or
        pixels: uint8 (h, w, 3), written as PNG, which loses nothing.
    """

    name: str
    label: int
    text: str
    path: str | None = None
    pixels: object = None


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is going to be written.

    Attributes:
        name: of the dataset.
        classes: names of the classes; the place is the 0-based label.
        items: the images of each split.
        mirror: whether a mirrored image keeps its class.
        encode: returns encoded bytes, height and width of an item.
    """

    name: str
    classes: tuple[str, ...]
    items: dict[str, list[Item]]
    mirror: bool
    encode: Callable[[Item], tuple[bytes, int, int]]


def write_dataset(
    plan: Plan,
    output_dir: str,
    *,
    num_shards: int | None,
    seed: int,
    progress: Callable[[str], None],
    before_writing: Callable[[], object] = lambda: None,
) -> None:
    """Writes the shards that are missing, then dataset.json.

    Args:
        plan: what to write.
        output_dir: where; made if it is absent.
        num_shards: of training; evaluation gets its share of them.
        seed: of the order of the images.
        progress: is told in one line what has been done.
        before_writing: called where there is something to write, before
            TensorFlow is imported.

    Raises:
        UserError: the folder cannot be written or holds something else, or
            an image cannot be decoded.
    """
    stamp = _fingerprint(plan, num_shards, seed)
    if _is_complete(output_dir, stamp):
        progress(f'{output_dir} is complete already: nothing to do')
        return
    try:
        _claim(output_dir, stamp)
        before_writing()
        shards: dict[str, int] = {}
        for split, items in plan.items.items():
            count = _shard_count(plan, split, num_shards)
            if not items:
                continue
            sizes, sides = _write_split(plan, split, output_dir, count, seed)
            shards.update(sizes)
            progress(
                f'wrote {len(items)} {split} images in {count} shards to '
                f'{output_dir}'
            )
        _write_metadata(plan, output_dir, stamp, shards, sides)
    except OSError as error:
        raise errors.UserError(
            f'output_dir {output_dir} cannot be written: {error.strerror}'
        ) from None


def _shard_count(plan: Plan, split: str, num_shards: int | None) -> int:
    """Returns the shards of a split: about as long as those of training."""
    images = len(plan.items[split])
    if num_shards is None:
        size = sum(
            len(item.pixels.tobytes())
            if item.path is None
            else os.path.getsize(item.path)
            for item in plan.items[split]
        )
        # Two shards at least, so that two workers can share them.
        num_shards = max(2, -(-size // _SHARD_BYTES))
    elif split != spec.TRAIN:
        train = max(1, len(plan.items.get(spec.TRAIN, ())))
        num_shards = max(1, round(num_shards * images / train))
    return max(1, min(num_shards, images))


def _write_metadata(
    plan: Plan,
    output_dir: str,
    stamp: str,
    shards: dict[str, int],
    sides: list[int],
) -> None:
    small = sorted(sides)[len(sides) // 2] <= _SMALL_SIDE
    metadata = {
        'name': plan.name,
        'classes': list(plan.classes),
        'label_offset': LABEL_OFFSET,
        'image_dataset': 'cifar10' if small else 'imagenet',
        'mirror': plan.mirror,
        'num_examples': {
            split: len(items) for split, items in plan.items.items()
        },
        'shards': shards,
        'fingerprint': stamp,
    }
    path = os.path.join(output_dir, tfrecords.METADATA_NAME)
    files.replace(path, json.dumps(metadata, indent=1).encode())
    files.sync(output_dir)
    os.remove(os.path.join(output_dir, _OWNER_NAME))


def _fingerprint(plan: Plan, num_shards: int | None, seed: int) -> str:
    """Names the content: sources with their sizes and times, and options."""
    digest = hashlib.sha256(
        repr((1, plan.name, plan.classes, num_shards, seed)).encode()
    )
    for split, items in sorted(plan.items.items()):
        for item in items:
            if item.path is None:
                state: tuple = (item.pixels.tobytes(),)
            else:
                stat = os.stat(item.path)
                state = (stat.st_size, stat.st_mtime_ns)
            digest.update(repr((split, item.name, item.label, state)).encode())
    return digest.hexdigest()


def _is_complete(output_dir: str, stamp: str) -> bool:
    """Tells whether the folder holds just this; refuses another content."""
    if not os.path.isdir(output_dir):
        return False
    present = [
        path
        for split in (spec.TRAIN, spec.VALIDATION)
        for path in tfrecords.find_shards(output_dir, split)
    ]
    metadata = tfrecords.read_metadata(output_dir)
    shards = metadata.get('shards', {})
    if metadata.get('fingerprint') == stamp:
        return all(
            os.path.exists(os.path.join(output_dir, name))
            and os.path.getsize(os.path.join(output_dir, name)) == size
            for name, size in shards.items()
        )
    owner = _read_text(os.path.join(output_dir, _OWNER_NAME))
    if present and owner != stamp:
        raise errors.UserError(
            f'output_dir {output_dir} holds other shards already, such as '
            f'{os.path.basename(present[0])}: name an empty folder'
        )
    return False


def _read_text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ''


def _claim(output_dir: str, stamp: str) -> None:
    """Marks the folder with the content that it is going to have."""
    os.makedirs(output_dir, exist_ok=True)
    for name in os.listdir(output_dir):
        if name.endswith('.tmp'):
            os.remove(os.path.join(output_dir, name))
    owner = os.path.join(output_dir, _OWNER_NAME)
    if _read_text(owner) != stamp:
        with open(owner, 'w') as file:
            file.write(stamp)


def _write_split(
    plan: Plan, split: str, output_dir: str, num_shards: int, seed: int
) -> tuple[dict[str, int], list[int]]:
    """Writes the shards of a split that are not there yet.

    Returns:
        Sizes of the shards in bytes by name, and the longer sides of the
        images of the first shard in pixels.
    """
    # The classes lie in order in a folder: mixed once here, a shard is a fair
    # sample, and a shuffle buffer need not be large.
    items = list(plan.items[split])
    random.Random(seed).shuffle(items)
    sizes, sides = {}, []
    for shard in range(num_shards):
        name = f'{split}-{shard:05d}-of-{num_shards:05d}'
        path = os.path.join(output_dir, name)
        if not os.path.exists(path):
            _write_shard(plan, items[shard::num_shards], path)
        sizes[name] = os.path.getsize(path)
    for item in items[:100]:
        sides.append(max(plan.encode(item)[1:]))
    return sizes, sides


def _write_shard(plan: Plan, items: list[Item], path: str) -> None:
    import tensorflow as tf

    temporary = path + '.tmp'
    with tf.io.TFRecordWriter(temporary) as writer:
        for item in items:
            writer.write(_make_example(item, *plan.encode(item)))
    files.sync(temporary)
    os.replace(temporary, path)
    files.sync(os.path.dirname(path))


def _make_example(item: Item, encoded: bytes, height: int, width: int) -> bytes:
    """Serializes an image with the features that ImageNet's shards have."""
    import tensorflow as tf

    def integer(value: int) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

    def string(value: bytes) -> tf.train.Feature:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    features = {
        'image/encoded': string(encoded),
        'image/format': string(_format(encoded)),
        'image/height': integer(height),
        'image/width': integer(width),
        'image/filename': string(os.fsencode(item.name)),
        'image/class/label': integer(item.label + LABEL_OFFSET),
        'image/class/text': string(os.fsencode(item.text)),
    }
    return tf.train.Example(
        features=tf.train.Features(feature=features)
    ).SerializeToString()


def _format(encoded: bytes) -> bytes:
    for magic, name in ((b'\xff\xd8', b'JPEG'), (b'\x89PNG', b'PNG')):
        if encoded.startswith(magic):
            return name
    return b'GIF' if encoded.startswith(b'GIF') else b'BMP'
