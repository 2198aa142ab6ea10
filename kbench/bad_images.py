"""Skips images that cannot be read, and counts them."""

import logging
from collections.abc import Callable

import numpy as np
import tensorflow as tf

_log = logging.getLogger('kbench')
# Images that one thread handles in a row.
_BLOCK = 16


class BadImages:
    """Skips unreadable images instead of raising, and counts them.

    One object belongs to one stream. `count` runs ahead of the loop by the
    batches that are prefetched.
    """

    def __init__(self) -> None:
        """Starts at zero."""
        self.count = 0
        self._start: int | None = None
        self._delivered = 0

    def start(self, position: int) -> None:
        """Says which position comes first."""
        self._start, self._delivered, self.count = position, 0, 0

    def see(self, positions: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Counts the gaps between positions; padding stands at `end`."""
        self._delivered += int((positions < end).sum())
        reached = min(int(positions.max()) + 1, int(end))
        count = reached - self._start - self._delivered
        if count and not self.count:
            _log.warning('unreadable images are skipped, and counted')
        self.count = count
        return positions


def map_images(
    stream: tf.data.Dataset,
    to_pixels: Callable[..., tuple],
    bad_images: BadImages | None,
) -> tf.data.Dataset:
    """Maps images in parallel and in order; skips bad ones where asked.

    Args:
        stream: (position, record).
        to_pixels: from those to (position, image, ...).
        bad_images: None = a bad image is an error.
    """
    if bad_images is None:
        return stream.map(to_pixels, num_parallel_calls=tf.data.AUTOTUNE)

    # Only what is inside a block is forgiven: a damaged shard is upstream.
    @tf.autograph.experimental.do_not_convert
    def block_images(*block: tf.Tensor) -> tf.data.Dataset:
        images = tf.data.Dataset.from_tensor_slices(block)
        return images.map(to_pixels).ignore_errors()

    return stream.batch(_BLOCK).interleave(
        block_images,
        cycle_length=tf.data.AUTOTUNE,
        block_length=_BLOCK,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )


def count(
    stream: tf.data.Dataset, bad_images: BadImages, end: int
) -> tf.data.Dataset:
    """Counts the skipped images of batches (positions, ...).

    Args:
        stream: batches, whose positions grow by one but for what is skipped.
        bad_images: where the count goes.
        end: the position of padding.
    """

    @tf.autograph.experimental.do_not_convert
    def count_batch(positions: tf.Tensor, *rest: tf.Tensor) -> tuple:
        seen = tf.numpy_function(
            bad_images.see, [positions, tf.constant(end, tf.int64)], tf.int64
        )
        return tf.ensure_shape(seen, positions.shape), *rest

    return stream.map(count_batch)
