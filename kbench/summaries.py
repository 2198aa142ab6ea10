"""TensorBoard's event files, written in the background.

TensorFlow 2.21 writes raw summaries; the functions that make them have moved
to the package tensorboard, which nobody needs who only trains. So the few
messages that the plugins read are made here.
"""

import concurrent.futures
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from google.protobuf import struct_pb2
from tensorflow.core.framework import summary_pb2

# Buckets of a histogram, as tf.summary.histogram has them.
NUM_BUCKETS = 30
# Numbers that stand for one histogram: its range and its buckets.
HISTOGRAM_SIZE = 2 + NUM_BUCKETS
# Images of a summary.
MAX_IMAGES = 3

_log = logging.getLogger('kbench')

_SCALAR = summary_pb2.DataClass.DATA_CLASS_SCALAR
_TENSOR = summary_pb2.DataClass.DATA_CLASS_TENSOR
_BLOBS = summary_pb2.DataClass.DATA_CLASS_BLOB_SEQUENCE


def _range_of(tensors):
    lowest = [tf.reduce_min(tensor) for tensor in tensors]
    highest = [tf.reduce_max(tensor) for tensor in tensors]
    return tf.reduce_min(tf.stack(lowest)), tf.reduce_max(tf.stack(highest))


def histogram(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """One histogram of all values of some tensors, where they are.

    Args:
        tensors: at least one, of any shape and float type.

    Returns:
        float32 (HISTOGRAM_SIZE,): the least value, the greatest, and the
        counts of equal buckets between; where a value is not finite, the
        first two tell, and the counts mean nothing.
    """
    tensors = [tf.cast(tensor, tf.float32) for tensor in tensors]
    low, high = _range_of(tensors)
    finite = tf.math.is_finite(low) & tf.math.is_finite(high)
    # The operation refuses a range that is empty, and values that are not
    # finite.
    start = tf.where(finite, low, 0.0)
    end = tf.where(
        finite & (high > low), high, start + 1e-6 + abs(start) * 1e-6
    )
    counts = tf.add_n(
        [
            tf.histogram_fixed_width(
                tf.where(finite, tensor, 0.0), [start, end], NUM_BUCKETS
            )
            for tensor in tensors
        ]
    )
    return tf.concat([[low, high], tf.cast(counts, tf.float32)], axis=0)


def make_observe(
    weights: Mapping[str, Any], states: Mapping[str, Any], verbosity: int
) -> tuple[Callable[[Sequence[tf.Tensor]], tf.Tensor], list[str]]:
    """Makes the histograms of a step.

    Args:
        weights: path to trainable variable, in the order of the gradients.
        states: path to the other variables.
        verbosity: 2 for all gradients in one; 3 for each of them and of the
            variables too.

    Returns:
        `observe(gradients)` to their numbers one after the other, float32;
        and the tag of each.
    """
    tags = ['gradients/all']
    if verbosity > 2:
        tags += [f'gradients/{path}' for path in weights]
        tags += [f'variables/{path}' for path in [*weights, *states]]

    def observe(gradients):
        parts = [histogram(gradients)]
        if verbosity > 2:
            values = [
                tf.convert_to_tensor(variable)
                for variable in [*weights.values(), *states.values()]
            ]
            parts += [histogram([one]) for one in [*gradients, *values]]
        return tf.concat(parts, axis=0)

    return observe, tags


def _value(tag, plugin, tensor, data_class, content=b''):
    value = summary_pb2.Summary.Value(tag=tag)
    value.metadata.plugin_data.plugin_name = plugin
    value.metadata.plugin_data.content = content
    value.metadata.data_class = data_class
    value.tensor.CopyFrom(tensor)
    return value


def _scalar_value(tag, number):
    tensor = tf.make_tensor_proto(number, tf.float32)
    return _value(tag, 'scalars', tensor, _SCALAR)


def _histogram_value(tag, numbers):
    """TensorBoard's form: left and right edge and count of each bucket."""
    low, high, *counts = numbers.tolist()
    if not (math.isfinite(low) and math.isfinite(high)):
        return None
    edges = np.linspace(low, high, NUM_BUCKETS + 1)
    buckets = np.stack([edges[:-1], edges[1:], counts], axis=1)
    tensor = tf.make_tensor_proto(buckets, tf.float64)
    return _value(tag, 'histograms', tensor, _TENSOR)


def _image_value(tag, images):
    """TensorBoard's form: width, height, and the images as PNG."""
    height, width = images.shape[1:3]
    encoded = [tf.io.encode_png(image).numpy() for image in images]
    texts = [str(width).encode(), str(height).encode(), *encoded]
    tensor = tf.make_tensor_proto(texts, tf.string)
    return _value(tag, 'images', tensor, _BLOBS)


def _varint(number):
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def _part(number, data):
    """A field of a protocol buffer that has a length."""
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _hparams_value(tag, content):
    # plugin_data.proto of TensorBoard's hparams: a version (0, left out) and
    # one of session_start_info (3), session_end_info (4).
    tensor = tf.make_tensor_proto([], tf.float32, [0])
    return _value(tag, 'hparams', tensor, _TENSOR, content)


def _session_start(values, started):
    """SessionStartInfo: hparams (1, a map), start_time_secs (5, double)."""
    content = b''
    for name, value in values.items():
        held = struct_pb2.Value()
        if isinstance(value, bool):
            held.bool_value = value
        elif isinstance(value, int | float):
            held.number_value = value
        else:
            held.string_value = str(value)
        entry = _part(1, name.encode()) + _part(2, held.SerializeToString())
        content += _part(1, entry)
    content += _varint(5 << 3 | 1) + np.float64(started).tobytes()
    return _part(3, content)


def _session_end(good, ended):
    """SessionEndInfo: status (1; 1 success, 2 failure), end (2, double)."""
    content = _varint(1 << 3) + _varint(1 if good else 2)
    content += _varint(2 << 3 | 1) + np.float64(ended).tobytes()
    return _part(4, content)


class Writer:
    """Writes event files of one folder, in a thread of its own.

    What cannot be written is warned of once and then left out: a run does
    not end for its summaries.

    Args:
        directory: the folder; made where it is absent.
    """

    def __init__(self, directory: str):
        self._directory = directory
        self._thread = concurrent.futures.ThreadPoolExecutor(max_workers=1)
        self._writer = None
        self._failed = False

    def _write(self, step, make_values):
        if self._failed:
            return
        try:
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(self._directory)
            values = [value for value in make_values() if value is not None]
            data = summary_pb2.Summary(value=values).SerializeToString()
            with tf.device('/cpu:0'), self._writer.as_default(step):
                tf.summary.experimental.write_raw_pb(data, step)
        except (OSError, tf.errors.OpError) as error:
            self._failed = True
            text = ' '.join(str(error).split())
            _log.warning(
                'no more summaries: %s cannot be written: %s',
                self._directory,
                text[:200],
            )

    def submit(
        self, step: int, make_values: Callable[[], Sequence[Any]]
    ) -> None:
        """Writes what a function makes, which runs in the thread too."""
        self._thread.submit(self._write, step, make_values)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes numbers by tag; those that are not finite too."""
        values = dict(values)
        self.submit(
            step,
            lambda: [_scalar_value(tag, values[tag]) for tag in values],
        )

    def histograms(
        self, step: int, tags: Sequence[str], numbers: np.ndarray
    ) -> None:
        """Writes what `make_observe` measured.

        Args:
            step: of the measurement.
            tags: of the histograms.
            numbers: (len(tags) * HISTOGRAM_SIZE,).
        """
        rows = numbers.reshape(len(tags), HISTOGRAM_SIZE)
        self.submit(step, lambda: list(map(_histogram_value, tags, rows)))

    def images(self, step: int, tag: str, pixels: Callable) -> None:
        """Writes pictures.

        Args:
            step: that saw them.
            tag: of the summary.
            pixels: () to uint8 (n, height, width, 3), called in the thread,
                which may wait for them.
        """
        self.submit(step, lambda: [_image_value(tag, pixels())])

    def start_session(self, values: Mapping[str, Any]) -> None:
        """Writes hyperparameters: booleans, numbers, strings, by name."""
        content = _session_start(values, time.time())
        tag = '_hparams_/session_start_info'
        self.submit(0, lambda: [_hparams_value(tag, content)])

    def end_session(self, good: bool) -> None:
        """Writes how what `start_session` began has ended."""
        content = _session_end(good, time.time())
        tag = '_hparams_/session_end_info'
        self.submit(0, lambda: [_hparams_value(tag, content)])

    def flush(self) -> None:
        """Lets readers see all that was written, when the thread is there."""
        self._thread.submit(
            lambda: self._writer and not self._failed and self._writer.flush()
        )

    def close(self) -> None:
        """Waits until all is written."""
        self.flush()
        self._thread.shutdown(wait=True)
        if self._writer is not None:
            self._writer.close()
