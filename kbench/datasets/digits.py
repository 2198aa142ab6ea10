"""The 1,797 handwritten digits inside scikit-learn, which need no download."""

import numpy as np

from kbench.datasets import spec

# Every fifth image of a class is held out: 355 of 1,797.
HELD_OUT_EVERY = 5


def load_digits() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns (images, labels) of both splits.

    Grey values 0..16 become 0..255, repeated for the three channels. Of each
    class the 5th, 10th, 15th ... image is held out, so the split is the same
    everywhere and keeps the shares of the classes.

    Returns:
        For `train` and `validation`: images uint8 (n, 8, 8, 3) and labels
        int32 (n,).
    """
    from sklearn import datasets as sklearn_datasets

    digits = sklearn_datasets.load_digits()
    # 16 levels are 17 values: 255 / 16 spreads them over the whole byte.
    grey = np.round(digits.images * (255 / 16)).astype(np.uint8)
    images = np.repeat(grey[..., np.newaxis], 3, axis=-1)
    labels = digits.target.astype(np.int32)
    held_out = np.zeros(len(labels), bool)
    for digit in range(10):
        held_out[np.flatnonzero(labels == digit)[4::HELD_OUT_EVERY]] = True
    return {
        spec.TRAIN: (images[~held_out], labels[~held_out]),
        spec.VALIDATION: (images[held_out], labels[held_out]),
    }


def open_digits(num_classes: int | None) -> spec.Dataset:
    """Opens the embedded digits."""
    return spec.Dataset(
        name='digits',
        kind='arrays',
        data_dir=None,
        num_classes=10 if num_classes is None else num_classes,
        image_dataset='cifar10',
        mirror=False,
        class_names=tuple('0123456789'),
        splits={
            name: spec.Split(name, len(labels), images=images, labels=labels)
            for name, (images, labels) in load_digits().items()
        },
    )
