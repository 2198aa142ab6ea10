"""Names the file and the image behind an error of the input pipeline.

tf.data says what went wrong but not where. Errors are rare and end the run, so
the place is searched for afterwards, at no cost to the pipeline.
"""

from collections.abc import Callable, Iterable

import tensorflow as tf

from kbench.datasets import spec, streams, tfrecords


def describe(
    error: tf.errors.OpError,
    dataset: spec.Dataset,
    part: spec.Split,
    decode: Callable[[tf.Tensor], tf.Tensor],
    suspects: Iterable[tf.Tensor] = (),
) -> str:
    """Returns one line that names the file and the record, where it can.

    Args:
        error: what the iterator raised.
        dataset: that was read.
        part: the split that was read.
        decode: raises where an encoded image is broken.
        suspects: serialized records that were about to be read; looked at
            before all the others.
    """
    text = str(error.message)
    if part.images is not None:
        return _first_line(text)
    if isinstance(error, tf.errors.DataLossError | tf.errors.NotFoundError):
        return find_damaged_shard(part) or _first_line(text)
    if 'label out of range' in text:
        return find_bad_label(dataset, part) or _first_line(text)
    if isinstance(error, tf.errors.InvalidArgumentError):
        return find_broken_image(
            dataset, part, decode, suspects
        ) or _first_line(text)
    return _first_line(text)


def _first_line(text: str) -> str:
    """Returns what TensorFlow said, without its names of functions."""
    line = text.strip().splitlines()[0] if text.strip() else 'no message'
    return 'reading the data failed: ' + line.split('}} ')[-1]


def find_damaged_shard(part: spec.Split) -> str | None:
    """Reads shards with all checksums until one fails."""
    for path in part.files:
        if not tf.io.gfile.exists(path):
            return f'{path} has disappeared while it was being read'
        if not part.file_counts:
            continue
        record = 0
        try:
            for _ in tf.data.TFRecordDataset(path):
                record += 1
        except tf.errors.OpError:
            return (
                f'{path} is corrupted or truncated: record {record} cannot be '
                'read; copy the file again'
            )
    return None


def find_bad_label(dataset: spec.Dataset, part: spec.Split) -> str | None:
    """Reads records until one has a label that is not legal."""
    reader = streams.Reader(dataset, part)
    low, count = dataset.label_offset, dataset.num_classes
    for path, record, serialized in _records(part):
        _, label, _ = reader(serialized)
        if not 0 <= int(label) < count:
            return (
                f'{path} record {record} has label {int(label) + low}, legal '
                f'are {low} to {low + count - 1} for {count} classes'
            )
    return None


def find_broken_image(
    dataset: spec.Dataset,
    part: spec.Split,
    decode: Callable[[tf.Tensor], tf.Tensor],
    suspects: Iterable[tf.Tensor],
) -> str | None:
    """Decodes images, the suspects first, until one is broken."""
    reader = streams.Reader(dataset, part)

    def broken(serialized: tf.Tensor) -> bool:
        try:
            decode(reader(serialized)[0])
        except tf.errors.OpError:
            return True
        return False

    for serialized in suspects:
        if broken(serialized):
            return _name_record(part, serialized)
    for path, record, serialized in _records(part):
        if broken(serialized):
            return _broken_line(path, record, serialized)
    return None


def _records(part: spec.Split) -> Iterable[tuple[str, int, tf.Tensor]]:
    if not part.file_counts:
        for index, path in enumerate(part.files):
            yield path, index, tf.constant(index, tf.int64)
        return
    for path in part.files:
        for record, serialized in enumerate(tf.data.TFRecordDataset(path)):
            yield path, record, serialized


def _name_record(part: spec.Split, serialized: tf.Tensor) -> str:
    """Finds the shard that holds a record."""
    if not part.file_counts:
        return _broken_line(part.files[int(serialized)], 0, serialized)
    wanted = serialized.numpy()
    for path in part.files:
        with open(path, 'rb') as file:
            places = enumerate(tfrecords.iterate_offsets(path))
            for record, (offset, length) in places:
                if length != len(wanted):
                    continue
                file.seek(offset)
                if file.read(length) == wanted:
                    return _broken_line(path, record, serialized)
    return 'a broken image was read, and its shard has changed since'


def _broken_line(path: str, record: int, serialized: tf.Tensor) -> str:
    if serialized.dtype != tf.string:
        return f'{path} cannot be decoded: the image is broken'
    example = tf.train.Example.FromString(serialized.numpy())
    names = example.features.feature['image/filename'].bytes_list.value
    name = f' ({names[0].decode(errors="replace")})' if names else ''
    return (
        f'{path} record {record}{name} cannot be decoded: the image is broken'
    )
