"""CIFAR-10 and CIFAR-100 from the folders that their authors publish.

The python version is made of pickles. A pickle can name any function of any
module and have it called; the unpickler here knows the few that rebuild
arrays and refuses the rest.
"""

import dataclasses
import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np

from kbench import errors
from kbench.datasets import spec

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


@dataclasses.dataclass(frozen=True)
class Layout:
    """One published folder.

    Attributes:
        name: of the dataset.
        files: of each split.
        binary: whether the files are records of bytes, or else pickles.
        label_key: of the pickles.
        label_bytes: in front of each binary record; the last one counts.
        names_file: where the names of the classes are.
        names_key: of the pickle that holds them.
    """

    name: str
    files: dict[str, tuple[str, ...]]
    binary: bool
    label_key: bytes
    label_bytes: int
    names_file: str
    names_key: bytes

    @property
    def num_classes(self) -> int:
        """10 or 100."""
        return 100 if self.name == 'cifar100' else 10


def _batches(end: str) -> dict[str, tuple[str, ...]]:
    return {
        spec.TRAIN: tuple(f'data_batch_{i}{end}' for i in range(1, 6)),
        spec.VALIDATION: (f'test_batch{end}',),
    }


LAYOUTS = {
    'cifar-10-batches-py': Layout(
        'cifar10',
        _batches(''),
        False,
        b'labels',
        1,
        'batches.meta',
        b'label_names',
    ),
    'cifar-10-batches-bin': Layout(
        'cifar10', _batches('.bin'), True, b'', 1, 'batches.meta.txt', b''
    ),
    'cifar-100-python': Layout(
        'cifar100',
        {spec.TRAIN: ('train',), spec.VALIDATION: ('test',)},
        False,
        b'fine_labels',
        1,
        'meta',
        b'fine_label_names',
    ),
    # The first byte is the coarse label.
    'cifar-100-binary': Layout(
        'cifar100',
        {spec.TRAIN: ('train.bin',), spec.VALIDATION: ('test.bin',)},
        True,
        b'',
        2,
        'fine_label_names.txt',
        b'',
    ),
}


def find_cifar(
    data_dir: str, data_name: str | None = None
) -> list[tuple[str, Layout]]:
    """Finds CIFAR folders: `data_dir` itself or folders in it.

    What counts is the names of the files inside.

    Returns:
        The folders and their layouts, one of each dataset at most.
    """
    found: dict[str, tuple[str, Layout]] = {}
    folders = [data_dir] + [os.path.join(data_dir, name) for name in LAYOUTS]
    for folder in folders:
        for layout in LAYOUTS.values():
            if data_name in (None, layout.name) and _fits(folder, layout):
                found.setdefault(layout.name, (folder, layout))
    return list(found.values())


def _fits(folder: str, layout: Layout) -> bool:
    present = [
        os.path.isfile(os.path.join(folder, name))
        for names in layout.files.values()
        for name in names
    ]
    # CIFAR-100's names are plain words: all must be there, as files.
    return all(present) if layout.name == 'cifar100' else any(present)


def open_cifar(
    data_dir: str, data_name: str | None, num_classes: int | None
) -> spec.Dataset:
    """Reads CIFAR into memory, 184 MB at most.

    Raises:
        UserError: a file is missing, damaged, or a pickle of something else.
    """
    found = find_cifar(data_dir, data_name)
    if not found:
        raise errors.UserError(
            f'data_dir {data_dir} holds no CIFAR files: expected one of '
            f'{", ".join(LAYOUTS)}'
        )
    if len(found) > 1:
        raise errors.UserError(
            f'data_dir {data_dir} holds cifar10 and cifar100: choose with '
            '--data_name'
        )
    folder, layout = found[0]
    if num_classes is not None and num_classes < layout.num_classes:
        raise errors.UserError(
            f'num_classes is {num_classes}, legal for {layout.name} are '
            f'{layout.num_classes} and more'
        )
    splits = {}
    for split, files in layout.files.items():
        images, labels = _read_split(folder, layout, files)
        splits[split] = spec.Split(
            split, len(labels), images=images, labels=labels
        )
    return spec.Dataset(
        name=layout.name,
        kind='arrays',
        data_dir=folder,
        num_classes=num_classes or layout.num_classes,
        image_dataset='cifar10',
        class_names=_read_names(folder, layout),
        splits=splits,
    )


def _read_split(
    folder: str, layout: Layout, files: tuple[str, ...]
) -> tuple[np.ndarray, np.ndarray]:
    parts = []
    for name in files:
        path = os.path.join(folder, name)
        if not os.path.isfile(path):
            raise errors.UserError(
                f'{layout.name} folder {folder} is not complete: no {name}'
            )
        read = _read_binary if layout.binary else _read_pickle
        pixels, labels = read(path, layout)
        if len(labels) and not 0 <= labels.min() <= labels.max() < (
            layout.num_classes
        ):
            raise errors.UserError(
                f'{path} has labels {labels.min()} to {labels.max()}, legal '
                f'are 0 to {layout.num_classes - 1}'
            )
        parts.append((pixels, labels))
    pixels = np.concatenate([part[0] for part in parts])
    labels = np.concatenate([part[1] for part in parts])
    images = pixels.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels.astype(np.int32)


def _read_binary(path: str, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    record = layout.label_bytes + _PIXELS
    raw = np.fromfile(path, np.uint8)
    if not len(raw) or len(raw) % record:
        raise errors.UserError(
            f'{path} has {len(raw)} bytes, which is not a multiple of the '
            f'{record} bytes of a {layout.name} record: is it truncated?'
        )
    raw = raw.reshape(-1, record)
    return raw[:, layout.label_bytes :], raw[:, layout.label_bytes - 1]


def _read_pickle(path: str, layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    content = load_pickle(path)
    pixels = labels = None
    if isinstance(content, dict):
        pixels = content.get(b'data')
        labels = content.get(layout.label_key)
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.ndim != 2
        or pixels.shape[1] != _PIXELS
        or not isinstance(labels, list | np.ndarray)
        or len(labels) != len(pixels)
    ):
        raise errors.UserError(
            f'{path} is no {layout.name} batch: expected a dictionary with '
            f'data (n x {_PIXELS} bytes) and {layout.label_key.decode()}'
        )
    return pixels, np.asarray(labels)


def _read_names(folder: str, layout: Layout) -> tuple[str, ...]:
    path = os.path.join(folder, layout.names_file)
    if not os.path.isfile(path):
        return ()
    if layout.binary:
        with open(path) as file:
            return tuple(line.strip() for line in file if line.strip())
    content = load_pickle(path)
    names = (
        content.get(layout.names_key, ()) if isinstance(content, dict) else ()
    )
    return tuple(
        name.decode() if isinstance(name, bytes) else str(name)
        for name in names
    )


def _rebuild_array(*arguments: Any) -> np.ndarray:
    """Stands for numpy's `_reconstruct`, for plain arrays alone."""
    kind, shape, _ = arguments
    if kind is not np.ndarray or shape not in ((0,), 0):
        raise pickle.UnpicklingError('no plain array')
    return np.ndarray.__new__(np.ndarray, (0,), np.int8)


def _rebuild_scalar(dtype: np.dtype, data: bytes) -> np.generic:
    return np.frombuffer(_as_bytes(data), dtype, 1)[0]


def _as_bytes(text: str | bytes, encoding: str | bytes = 'latin1') -> bytes:
    """Stands for `_codecs.encode`, which pickles use to write bytes."""
    if encoding not in ('latin1', b'latin1'):
        raise pickle.UnpicklingError(f'encoding {encoding!r}')
    return text if isinstance(text, bytes) else text.encode('latin1')


def _make_dtype(
    name: str | bytes, align: bool = False, copy: bool = False
) -> np.dtype:
    del align, copy
    dtype = np.dtype(name.decode() if isinstance(name, bytes) else name)
    if dtype.hasobject:
        raise pickle.UnpicklingError('an array of objects')
    return dtype


# What a pickle may name, and what it gets.
_KNOWN: dict[tuple[str, str], Callable[..., Any] | type] = {
    ('numpy.core.multiarray', '_reconstruct'): _rebuild_array,
    ('numpy._core.multiarray', '_reconstruct'): _rebuild_array,
    ('numpy.core.multiarray', 'scalar'): _rebuild_scalar,
    ('numpy._core.multiarray', 'scalar'): _rebuild_scalar,
    ('numpy', 'ndarray'): np.ndarray,
    ('numpy', 'dtype'): _make_dtype,
    ('_codecs', 'encode'): _as_bytes,
    ('__builtin__', 'set'): set,
    ('builtins', 'set'): set,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f'it names {module}.{name}') from None


def load_pickle(path: str) -> Any:
    """Reads a pickle of arrays, bytes, strings, numbers and containers.

    Raises:
        UserError: it names anything else, which could run code, or it is
            damaged.
    """
    with open(path, 'rb') as file:
        try:
            return _Unpickler(file, encoding='bytes').load()
        except Exception as error:
            # Damaged pickles raise whatever the damage leads to.
            reason = str(error) or type(error).__name__
            raise errors.UserError(
                f'{path} is not a pickle of plain data: '
                f'{reason.splitlines()[0]}; expected arrays, bytes, strings, '
                'numbers and containers'
            ) from None
