"""What kbench knows of a dataset once it is open. No TensorFlow here."""

import dataclasses
from typing import Any

from kbench import errors

TRAIN = 'train'
VALIDATION = 'validation'
# What people call the held-out images.
SPLIT_NAMES = {
    'train': TRAIN,
    'validation': VALIDATION,
    'valid': VALIDATION,
    'val': VALIDATION,
    'test': VALIDATION,
}


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """The images of one split.

    Attributes:
        name: `train`, `validation`, or another name that TFDS gave.
        num_examples: images of an epoch, as schedules and evaluation count
            it; the user may override it.
        files: TFRecord shards or image files, in a fixed order.
        file_counts: records of each shard; empty for other kinds.
        images: uint8 (n, height, width, 3), for sets that fit in memory.
        labels: int32 (n,), 0-based, beside `images` or image `files`.
    """

    name: str
    num_examples: int
    files: tuple[str, ...] = ()
    file_counts: tuple[int, ...] = ()
    images: Any = None
    labels: Any = None

    @property
    def num_records(self) -> int:
        """How many images there really are: one pass over the data."""
        if self.file_counts:
            return sum(self.file_counts)
        return len(self.labels)


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """An open dataset: plain values, nothing read but what was counted.

    Attributes:
        name: what `--data_name` would be.
        kind: `tfrecord`, `tfds`, `arrays` or `image_folder`: how it is read.
        data_dir: the folder, None for embedded sets.
        num_classes: classes of the head.
        label_offset: what is subtracted from a stored label to make it
            0-based.
        image_dataset: `imagenet` or `cifar10`: which model table suits.
        mirror: whether a mirrored image keeps its class; digits do not.
        splits: the splits that exist, by name.
        class_names: the names of the classes, where they are known.
        parser: for `tfds`, what turns a serialized record into features.
    """

    name: str
    kind: str
    data_dir: str | None
    num_classes: int
    splits: dict[str, Split]
    label_offset: int = 0
    image_dataset: str = 'imagenet'
    mirror: bool = True
    class_names: tuple[str, ...] = ()
    parser: Any = None

    def split(self, name: str) -> Split:
        """Returns a split; `test` and `validation` name the same images.

        Raises:
            UserError: there are no such images; says which there are.
        """
        if name in self.splits:
            return self.splits[name]
        wanted = SPLIT_NAMES.get(name)
        for alias, canonical in SPLIT_NAMES.items():
            if canonical == wanted and alias in self.splits:
                return self.splits[alias]
        where = self.data_dir or f'the embedded set {self.name}'
        expected = (
            f': expected {SPLIT_NAMES.get(name, name)}-* shards'
            if self.kind == 'tfrecord'
            else ''
        )
        legal = ', '.join(sorted(self.splits)) or 'none'
        raise errors.UserError(
            f'no {name} images in {where}{expected}; splits present: {legal}'
        )

    def num_examples(self, split: str) -> int:
        """Returns how many images an epoch of the split has."""
        return self.split(split).num_examples
