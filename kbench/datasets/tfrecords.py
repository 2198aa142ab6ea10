"""ImageNet-style TFRecord shards: finding, counting, checking labels.

Counting hops from header to header, so it reads twelve bytes a record; the
result is kept beside the data, where that folder can be written. Only the
look at labels imports TensorFlow.
"""

import contextlib
import json
import logging
import os
import re
import struct
from collections.abc import Iterator
from concurrent import futures

from kbench import errors, files
from kbench.datasets import spec

INDEX_NAME = '.kbench_index.json'
METADATA_NAME = 'dataset.json'
# Up to this size every label is looked at, beyond it a few of each shard.
_FULL_SCAN_BYTES = 1 << 30
_SAMPLE_RECORDS = 4
_SHARD = re.compile(r'^(?P<split>[a-z]+)-(?P<index>\d+)-of-(?P<total>\d+)$')
_IMAGENET_CLASSES = 1000
_log = logging.getLogger('kbench')


def find_shards(data_dir: str, split: str) -> list[str]:
    """Returns the shards of a split, sorted; empty where there are none.

    `<split>-*` is looked for in `data_dir` and in `data_dir/<split>`.

    Raises:
        UserError: the folder cannot be read.
    """
    found = []
    for folder in (data_dir, os.path.join(data_dir, split)):
        if not os.path.isdir(folder):
            continue
        try:
            names = os.listdir(folder)
        except OSError as error:
            raise errors.UserError(
                f'data_dir {folder} cannot be read: {error.strerror}'
            ) from None
        found += [
            os.path.join(folder, name)
            for name in names
            if name.startswith(split + '-')
            and '.' not in name
            and os.path.isfile(os.path.join(folder, name))
        ]
    return sorted(found)


def check_shards(data_dir: str, split: str) -> list[str]:
    """Returns the shards that hold something, after looking at their names.

    Warns of empty shards and of gaps in `-of-01024`.

    Raises:
        UserError: all shards are empty.
    """
    shards = find_shards(data_dir, split)
    empty = [path for path in shards if os.path.getsize(path) == 0]
    if shards and len(empty) == len(shards):
        raise errors.UserError(
            f'all {len(shards)} {split} shards in {data_dir} are empty '
            '(0 bytes): write them again'
        )
    if empty:
        names = ', '.join(os.path.basename(path) for path in empty[:5])
        more = f' and {len(empty) - 5} more' if len(empty) > 5 else ''
        _log.warning('empty shards in %s: %s%s', data_dir, names, more)
    _warn_of_gaps(data_dir, shards)
    return [path for path in shards if path not in set(empty)]


def _warn_of_gaps(data_dir: str, shards: list[str]) -> None:
    totals: dict[tuple[str, int], set[int]] = {}
    for path in shards:
        match = _SHARD.match(os.path.basename(path))
        if match:
            key = (match['split'], int(match['total']))
            totals.setdefault(key, set()).add(int(match['index']))
    for (split, total), present in totals.items():
        missing = sorted(set(range(total)) - present)
        if missing:
            _log.warning(
                '%s: %d of %d %s shards are missing, the first is number %d',
                data_dir,
                len(missing),
                total,
                split,
                missing[0],
            )


def count_records(path: str) -> int:
    """Returns the number of records of a TFRecord file.

    Raises:
        UserError: the file ends inside a record, or is no TFRecord file.
    """
    return sum(1 for _ in iterate_offsets(path))


def iterate_offsets(path: str) -> Iterator[tuple[int, int]]:
    """Yields (offset of the payload, its length in bytes) of each record."""
    size = os.path.getsize(path)
    offset = 0
    with open(path, 'rb', buffering=0) as file:
        while offset < size:
            file.seek(offset)
            header = file.read(12)
            if len(header) < 12:
                raise errors.UserError(_truncated(path, offset, size))
            length, crc = struct.unpack('<QI', header)
            if crc != _masked_crc32c(header[:8]):
                raise errors.UserError(
                    f'{path} is not a TFRecord file or is corrupted: bad '
                    f'record header at byte {offset}'
                )
            end = offset + 12 + length + 4
            if end > size:
                raise errors.UserError(_truncated(path, offset, size))
            yield offset + 12, length
            offset = end


def _truncated(path: str, offset: int, size: int) -> str:
    return (
        f'{path} is truncated: the record at byte {offset} runs over the '
        f'end of the file ({size} bytes)'
    )


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            # The Castagnoli polynomial, reflected.
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_CRC_TABLE = _crc_table()


def _masked_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    # The mask of the TFRecord format.
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _scan(path: str, limit: int | None) -> dict[str, int]:
    """Counts a shard and finds the range of the labels of its records."""
    from tensorflow.core.example import example_pb2

    count, low, high = 0, None, None
    with open(path, 'rb') as file:
        for offset, length in iterate_offsets(path):
            count += 1
            if limit is not None and count > limit:
                continue
            file.seek(offset)
            label = _label(example_pb2, file.read(length), path, count - 1)
            low = label if low is None else min(low, label)
            high = label if high is None else max(high, label)
    return {'count': count, 'low': low, 'high': high}


def _label(example_pb2, payload: bytes, path: str, record: int) -> int:
    from google.protobuf import message

    try:
        features = example_pb2.Example.FromString(payload).features.feature
    except message.DecodeError:
        features = {}
    if 'image/encoded' not in features:
        raise errors.UserError(
            f'{path} record {record} is no image: expected the features '
            'image/encoded and image/class/label'
        )
    values = features['image/class/label'].int64_list.value
    if len(values) != 1:
        raise errors.UserError(
            f'{path} record {record} has {len(values)} values in '
            'image/class/label, expected 1'
        )
    return values[0]


def scan_shards(data_dir: str, shards: list[str]) -> list[dict[str, int]]:
    """Counts shards, taking what the index beside the data already knows.

    Returns:
        For each shard its `count`, and `low` and `high`, the range of the
        labels that were looked at.
    """
    index = _read_index(data_dir)
    total = sum(os.path.getsize(path) for path in shards)
    limit = None if total <= _FULL_SCAN_BYTES else _SAMPLE_RECORDS
    new = {}

    def entry(path: str) -> dict[str, int]:
        stat = os.stat(path)
        stamp = {'size': stat.st_size, 'mtime_ns': stat.st_mtime_ns}
        known = index.get(os.path.relpath(path, data_dir), {})
        if all(known.get(key) == value for key, value in stamp.items()):
            return known
        new[os.path.relpath(path, data_dir)] = {**stamp, **_scan(path, limit)}
        return new[os.path.relpath(path, data_dir)]

    with futures.ThreadPoolExecutor(8) as pool:
        entries = list(pool.map(entry, shards))
    if new:
        data = json.dumps({**index, **new}).encode()
        # A read-only folder is counted each time.
        with contextlib.suppress(OSError):
            files.replace(os.path.join(data_dir, INDEX_NAME), data)
    return entries


def _read_index(data_dir: str) -> dict[str, dict[str, int]]:
    try:
        with open(os.path.join(data_dir, INDEX_NAME)) as file:
            index = json.load(file)
        return index if isinstance(index, dict) else {}
    except (OSError, ValueError):
        return {}


def read_metadata(data_dir: str) -> dict:
    """Returns what `kbench prepare` wrote into dataset.json, or nothing.

    Raises:
        UserError: there is such a file and it cannot be understood.
    """
    path = os.path.join(data_dir, METADATA_NAME)
    if not os.path.exists(path):
        return {}
    try:
        with open(path) as file:
            metadata = json.load(file)
    except (OSError, ValueError) as error:
        raise errors.UserError(f'{path} cannot be read: {error}') from None
    if not isinstance(metadata, dict) or 'classes' not in metadata:
        raise errors.UserError(
            f'{path} was not written by `kbench prepare`: it names no classes'
        )
    return metadata


def open_tfrecords(
    data_dir: str, data_name: str | None, num_classes: int | None
) -> spec.Dataset:
    """Opens a folder of ImageNet-style TFRecord shards.

    Stored labels count from 1 (ImageNet) or from 0; which of the two is read
    off dataset.json or off the labels themselves.

    Raises:
        UserError: nothing to read, a damaged shard, labels out of range.
    """
    metadata = read_metadata(data_dir)
    scans = {}
    for split in (spec.TRAIN, spec.VALIDATION):
        shards = check_shards(data_dir, split)
        if shards:
            scans[split] = (shards, scan_shards(data_dir, shards))
    classes, offset = _label_convention(data_dir, data_name, metadata, scans)
    if num_classes is None:
        num_classes = classes
    for shards, entries in scans.values():
        _check_labels(shards, entries, offset, num_classes)
    return spec.Dataset(
        name=data_name or metadata.get('name', 'imagenet'),
        kind='tfrecord',
        data_dir=data_dir,
        num_classes=num_classes,
        label_offset=offset,
        image_dataset=metadata.get('image_dataset', 'imagenet'),
        mirror=metadata.get('mirror', True),
        class_names=tuple(metadata.get('classes', ())),
        splits={
            split: spec.Split(
                name=split,
                num_examples=sum(entry['count'] for entry in entries),
                files=tuple(shards),
                file_counts=tuple(entry['count'] for entry in entries),
            )
            for split, (shards, entries) in scans.items()
        },
    )


def _label_convention(
    data_dir: str, data_name: str | None, metadata: dict, scans: dict
) -> tuple[int, int]:
    """Returns (number of classes, offset of the stored labels)."""
    if metadata:
        return len(metadata['classes']), metadata.get('label_offset', 1)
    entries = [entry for _, found in scans.values() for entry in found]
    lows = [entry['low'] for entry in entries if entry['low'] is not None]
    highs = [entry['high'] for entry in entries if entry['high'] is not None]
    if not lows:
        raise errors.UserError(f'no records in the shards of {data_dir}')
    offset = 0 if min(lows) <= 0 else 1
    classes = max(highs) - offset + 1
    # A part of ImageNet rarely shows all its classes.
    if data_name == 'imagenet' or 900 < classes <= _IMAGENET_CLASSES:
        classes = _IMAGENET_CLASSES
    return classes, offset


def _check_labels(
    shards: list[str],
    entries: list[dict[str, int]],
    offset: int,
    num_classes: int,
) -> None:
    for path, entry in zip(shards, entries, strict=True):
        for label in (entry['low'], entry['high']):
            if label is None:
                continue
            if not offset <= label < num_classes + offset:
                raise errors.UserError(
                    f'{path} has label {label}, legal are {offset} to '
                    f'{num_classes + offset - 1} for {num_classes} classes'
                )
