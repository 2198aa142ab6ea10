"""A folder of images, a sub-folder for each class."""

import dataclasses
import math
import os

import numpy as np

from kbench import errors
from kbench.datasets import spec

EXTENSIONS = ('.jpg', '.jpeg', '.png', '.bmp', '.gif')
# Share of each class that is held out where the folder has no split.
HELD_OUT = 0.1


@dataclasses.dataclass(frozen=True)
class ImageFolder:
    """What a folder of images holds.

    Attributes:
        classes: names of the class folders, sorted; the place is the label.
        members: by split, (path, label) of each image, sorted by path.
    """

    classes: tuple[str, ...]
    members: dict[str, list[tuple[str, int]]]


def find_classes(folder: str) -> list[str]:
    """Returns the sub-folders that hold images themselves, sorted."""
    classes = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir() and not entry.name.startswith('.'):
                with os.scandir(entry.path) as files:
                    if any(_is_image(file.name) for file in files):
                        classes.append(entry.name)
    return sorted(classes)


def _is_image(name: str) -> bool:
    return name.lower().endswith(EXTENSIONS) and not name.startswith('.')


def find_splits(folder: str) -> dict[str, str]:
    """Returns the folders of the splits, where there are such folders."""
    splits = {}
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        split = spec.SPLIT_NAMES.get(name)
        if split and os.path.isdir(path) and find_classes(path):
            splits.setdefault(split, path)
    return splits


def is_image_folder(folder: str) -> bool:
    """Tells whether a folder holds images by class, or splits of such."""
    return bool(find_splits(folder) or find_classes(folder))


def scan_image_folder(
    image_dir: str, fraction: float = HELD_OUT
) -> ImageFolder:
    """Lists the images of a folder.

    Where it has sub-folders `train` and `validation` (or `val`, `test`), they
    are the splits. Otherwise `fraction` of each class is held out, spread
    evenly over the sorted names.

    Args:
        image_dir: the folder.
        fraction: held out of each class, 0 and more, below 1.

    Raises:
        UserError: no images there, or the splits disagree on the classes.
    """
    if not os.path.isdir(image_dir):
        raise errors.UserError(f'image_dir {image_dir} is not a folder')
    try:
        folders = find_splits(image_dir)
        if folders:
            return _scan_splits(image_dir, folders)
        classes = find_classes(image_dir)
        everything = _list_images(image_dir, classes)
    except OSError as error:
        raise errors.UserError(
            f'{error.filename} cannot be read: {error.strerror}'
        ) from None
    if not everything:
        raise errors.UserError(
            f'{image_dir} holds no images: expected a sub-folder for each '
            f'class, with files {", ".join(EXTENSIONS)}'
        )
    members: dict[str, list] = {spec.TRAIN: [], spec.VALIDATION: []}
    seen = [0] * len(classes)
    for path, label in everything:
        before = math.floor(seen[label] * fraction)
        seen[label] += 1
        held_out = math.floor(seen[label] * fraction) > before
        split = spec.VALIDATION if held_out else spec.TRAIN
        members[split].append((path, label))
    return ImageFolder(tuple(classes), members)


def _scan_splits(image_dir: str, folders: dict[str, str]) -> ImageFolder:
    classes = {split: find_classes(folder) for split, folder in folders.items()}
    known = classes.get(spec.TRAIN) or next(iter(classes.values()))
    for split, names in classes.items():
        strange = sorted(set(names) - set(known))
        if strange:
            raise errors.UserError(
                f'{image_dir} has class {strange[0]} in {split} but not in '
                'train: the splits must have the same classes'
            )
    index = {name: label for label, name in enumerate(known)}
    members = {}
    for split, folder in folders.items():
        members[split] = [
            (path, index[name])
            for name in classes[split]
            for path, _ in _list_images(folder, [name])
        ]
    return ImageFolder(tuple(known), members)


def _list_images(folder: str, classes: list[str]) -> list[tuple[str, int]]:
    return [
        (os.path.join(folder, name, file), label)
        for label, name in enumerate(classes)
        for file in sorted(os.listdir(os.path.join(folder, name)))
        if _is_image(file)
    ]


def open_image_folder(
    data_dir: str, data_name: str | None, num_classes: int | None
) -> spec.Dataset:
    """Opens a folder of images as a dataset."""
    del data_name
    folder = scan_image_folder(data_dir)
    if num_classes is not None and num_classes < len(folder.classes):
        raise errors.UserError(
            f'num_classes is {num_classes} but {data_dir} holds '
            f'{len(folder.classes)} classes: legal are that many and more'
        )
    return spec.Dataset(
        name='image_folder',
        kind='image_folder',
        data_dir=data_dir,
        num_classes=num_classes or len(folder.classes),
        class_names=folder.classes,
        splits={
            split: spec.Split(
                name=split,
                num_examples=len(members),
                files=tuple(path for path, _ in members),
                labels=np.array([label for _, label in members], np.int32),
            )
            for split, members in folder.members.items()
            if members
        },
    )
