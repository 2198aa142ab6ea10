"""Shards and photographs for the tests of the input."""

import io
import os

import numpy as np
import skimage
import sklearn
import tensorflow as tf
from PIL import Image

_SKLEARN = os.path.join(os.path.dirname(sklearn.__file__), 'datasets/images')
_SKIMAGE = os.path.join(os.path.dirname(skimage.__file__), 'data')
PHOTOS = {
    'china': os.path.join(_SKLEARN, 'china.jpg'),
    'flower': os.path.join(_SKLEARN, 'flower.jpg'),
    'rocket': os.path.join(_SKIMAGE, 'rocket.jpg'),
}


def photo_bytes(name: str) -> bytes:
    with open(PHOTOS[name], 'rb') as file:
        return file.read()


def photo(name: str) -> Image.Image:
    return Image.open(PHOTOS[name]).convert('RGB')


def encode(image: Image.Image, file_format: str = 'JPEG', **options) -> bytes:
    # A broken colour profile inside a photograph makes libpng talk.
    image.info.pop('icc_profile', None)
    buffer = io.BytesIO()
    image.save(buffer, file_format, **options)
    return buffer.getvalue()


def make_example(
    encoded: bytes,
    label: int,
    name: str = 'image',
    boxes: tuple[tuple[float, ...], ...] = (),
) -> bytes:
    def feature(value: object) -> tf.train.Feature:
        if isinstance(value, bytes):
            return tf.train.Feature(
                bytes_list=tf.train.BytesList(value=[value])
            )
        if isinstance(value, int):
            return tf.train.Feature(
                int64_list=tf.train.Int64List(value=[value])
            )
        return tf.train.Feature(float_list=tf.train.FloatList(value=value))

    values = {
        'image/encoded': encoded,
        'image/class/label': label,
        'image/filename': name.encode(),
    }
    sides = ('ymin', 'xmin', 'ymax', 'xmax')
    for side, coordinates in zip(sides, zip(*boxes, strict=True), strict=False):
        values[f'image/object/bbox/{side}'] = list(coordinates)
    return tf.train.Example(
        features=tf.train.Features(
            feature={key: feature(value) for key, value in values.items()}
        )
    ).SerializeToString()


def write_shard(path: object, records: list[bytes]) -> str:
    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def tagged_images(count: int, size: int = 8) -> list[bytes]:
    """PNGs whose red byte is their number: a pixel tells which one it is."""
    return [
        encode(Image.fromarray(np.full((size, size, 3), i, np.uint8)), 'PNG')
        for i in range(count)
    ]


def write_tagged(
    folder: object, split: str, count: int, files: int, size: int = 8
) -> None:
    """Shards of tagged images, label = number % 10 + 1."""
    images = tagged_images(count, size)
    for shard in range(files):
        write_shard(
            os.path.join(str(folder), f'{split}-{shard:05d}-of-{files:05d}'),
            [
                make_example(images[i], i % 10 + 1, f'{i}.png')
                for i in range(shard, count, files)
            ],
        )
