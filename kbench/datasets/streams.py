"""Numbered streams of encoded records, in an order that follows from numbers.

The one module of the package that imports TensorFlow as soon as it is
imported.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from kbench import errors
from kbench.datasets import spec

# Encoded images that wait in the shuffle buffer: a bound in bytes keeps the
# memory flat whatever the size of the images.
_SHUFFLE_BYTES = 256 << 20
_SHUFFLE_RECORDS = 16384
# Shards read at a time, and bytes read of each at a time.
_INTERLEAVE = 16
_READ_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True)
class Share:
    """Which part of the data a process reads: number `index` of `count`."""

    index: int = 0
    count: int = 1

    def seed(self, seed: int) -> int:
        """Gives every worker its own order and its own augmentation."""
        return seed + 1_000_003 * self.index


def train_records(
    part: spec.Split, share: Share, *, seed: int, start_record: int = 0
) -> tf.data.Dataset:
    """Creates the endless, shuffled, numbered stream of encoded records.

    Record k belongs to epoch k // n, n being the records of this share. Each
    epoch has an order of its own, which follows from (seed, epoch).

    Args:
        part: the split.
        share: of this process.
        seed: of the order.
        start_record: records that were consumed already; they are skipped.

    Returns:
        Elements (position int64, record); `read_record` reads a record.
    """
    files, every, offset = _assign_share(part, share)
    count = _share_count(part, files, every, offset)
    first_epoch, skipped = divmod(start_record, count)
    order_seed = share.seed(seed)

    @tf.autograph.experimental.do_not_convert
    def epoch_records(epoch: tf.Tensor) -> tf.data.Dataset:
        key = tf.stack([tf.constant(order_seed, tf.int64), epoch])
        if not part.file_counts:
            records = _shuffled_indices(part, key, every, offset)
        else:
            records = _shuffled_files(part, files, key, every, offset)
        # Numbered within the epoch, so that whoever reads an epoch (a tf.data
        # service deals them out) gives an image the same number.
        records = records.enumerate(start=epoch * count)
        already = tf.where(epoch == first_epoch, skipped, 0)
        return records.skip(tf.cast(already, tf.int64))

    epochs = tf.data.Dataset.range(first_epoch, tf.int64.max)
    return epochs.flat_map(epoch_records)


def ordered_records(part: spec.Split) -> tf.data.Dataset:
    """Returns one pass in the order of the files, each record once.

    Returns:
        Elements (position int64, record), as `train_records` has them.
    """
    if part.file_counts:
        records = tf.data.TFRecordDataset(part.files, buffer_size=_READ_BYTES)
    else:
        records = tf.data.Dataset.range(part.num_records)
    return records.enumerate()


def _assign_share(part: spec.Split, share: Share) -> tuple[list[int], int, int]:
    """Divides a split among workers: whole files, else every n-th record.

    Returns:
        Indices of the files of this worker; and take every n-th record, from
        which on.
    """
    files = list(range(len(part.files)))
    if part.file_counts and len(files) % share.count == 0:
        return files[share.index :: share.count], 1, 0
    return files, share.count, share.index


def _share_count(
    part: spec.Split, files: list[int], every: int, offset: int
) -> int:
    if part.file_counts:
        total = sum(part.file_counts[index] for index in files)
    else:
        total = part.num_records
    count = len(range(offset, total, every))
    if count == 0:
        raise errors.UserError(
            f'{every} workers cannot share {total} {part.name} images: there '
            'must be one image for each'
        )
    return count


def _shuffled_indices(
    part: spec.Split, key: tf.Tensor, every: int, offset: int
) -> tf.data.Dataset:
    order = tf.range(offset, part.num_records, every, tf.int64)
    order = tf.random.experimental.stateless_shuffle(order, key)
    return tf.data.Dataset.from_tensor_slices(order)


def _shuffled_files(
    part: spec.Split,
    files: list[int],
    key: tf.Tensor,
    every: int,
    offset: int,
) -> tf.data.Dataset:
    """Returns one epoch: files in a new order, then a shuffle buffer."""
    order = tf.constant(files, tf.int64)
    if every == 1:
        order = tf.random.experimental.stateless_shuffle(order, key)
    names = tf.constant(part.files)
    records = tf.data.Dataset.from_tensor_slices(order).interleave(
        tf.autograph.experimental.do_not_convert(
            lambda index: tf.data.TFRecordDataset(
                names[index], buffer_size=_READ_BYTES
            )
        ),
        cycle_length=min(_INTERLEAVE, len(files)),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    if every > 1:
        # The workers divide one order, so it must be the same for all.
        records = records.shard(every, offset)
    draw = tf.random.stateless_uniform(
        [], key, minval=0, maxval=tf.int64.max, dtype=tf.int64
    )
    return records.shuffle(
        _shuffle_size(part), seed=draw, reshuffle_each_iteration=False
    )


def _shuffle_size(part: spec.Split) -> int:
    """Returns the records that the shuffle buffer holds."""
    size = sum(tf.io.gfile.stat(path).length for path in part.files)
    mean = max(1, size // max(1, part.num_records))
    records = min(_SHUFFLE_RECORDS, part.num_records, _SHUFFLE_BYTES // mean)
    return max(2, records)


_BOX_SIDES = ('ymin', 'xmin', 'ymax', 'xmax')
_FEATURES = {
    'image/encoded': tf.io.FixedLenFeature([], tf.string),
    'image/class/label': tf.io.FixedLenFeature([], tf.int64),
    **{
        f'image/object/bbox/{side}': tf.io.VarLenFeature(tf.float32)
        for side in _BOX_SIDES
    },
}


class Reader:
    """Turns a record into an image, a label and boxes, inside tf.data."""

    def __init__(self, dataset: spec.Dataset, part: spec.Split) -> None:
        """Takes what the records refer to into memory."""
        self._dataset = dataset
        self._images = None if part.images is None else _shared(part.images)
        self._files = tf.constant(part.files, tf.string)
        self._labels = None if part.labels is None else _shared(part.labels)

    def __call__(
        self, record: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Reads one record.

        Returns:
            The image, a string while it is encoded and otherwise uint8
            (h, w, 3); the label, int32, 0-based; boxes, float32 (n, 4).
        """
        if self._dataset.kind == 'arrays':
            image = tf.gather(self._images, record)
            return image, tf.gather(self._labels, record), tf.zeros([0, 4])
        if self._dataset.kind == 'image_folder':
            encoded = tf.io.read_file(tf.gather(self._files, record))
            return encoded, tf.gather(self._labels, record), tf.zeros([0, 4])
        if self._dataset.parser is not None:
            encoded, label = self._dataset.parser(record)
            return encoded, tf.cast(label, tf.int32), tf.zeros([0, 4])
        features = tf.io.parse_single_example(record, _FEATURES)
        boxes = tf.stack(
            [
                features[f'image/object/bbox/{side}'].values
                for side in _BOX_SIDES
            ],
            axis=-1,
        )
        label = features['image/class/label'] - self._dataset.label_offset
        return features['image/encoded'], tf.cast(label, tf.int32), boxes


def _shared(array: np.ndarray) -> tf.Tensor:
    with tf.device('cpu'):
        return tf.convert_to_tensor(array)
