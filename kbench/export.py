"""A trained classifier for others: a SavedModel and a .keras file.

Both load where there is no kbench.
"""

import dataclasses
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbench import errors, preprocessing
from kbench.models import plain as plain_lib

SAVED_MODEL, KERAS_FILE, FACTS = 'saved_model', 'model.keras', 'export.json'

_log = logging.getLogger('kbench')


@dataclasses.dataclass(frozen=True)
class Pixels:
    """How evaluation makes pixels of an encoded image.

    Attributes:
        size: side of the image in pixels.
        small: whether the images are small ones, which are only resized.
        eval_method, resize_method: as `preprocessing.eval_image` has them.
    """

    size: int
    small: bool
    eval_method: str
    resize_method: str

    def decode(self, encoded: tf.Tensor, position: tf.Tensor) -> tf.Tensor:
        """Makes one picture.

        Args:
            encoded: scalar string, a JPEG, PNG, GIF or BMP.
            position: of the image in the batch.

        Returns:
            float32 (size, size, 3), 0..255.
        """
        if self.small:
            image = preprocessing.decode(encoded)
            image = preprocessing.eval_small_image(image, size=self.size)
            return tf.ensure_shape(
                tf.cast(image, tf.float32), [self.size, self.size, 3]
            )
        return preprocessing.eval_image(
            encoded,
            position,
            size=self.size,
            eval_method=self.eval_method,
            resize_method=self.resize_method,
        )


class _Served(tf.Module):
    """The model and what comes before and after it."""

    def __init__(self, model, pixels: Pixels):
        super().__init__()
        # Known to the SavedModel as variables of the module.
        self.model_variables = [weight.value for weight in model.variables]
        self._model, self._pixels = model, pixels
        spec = tf.TensorSpec([None], tf.string, 'images')
        self.serve = tf.function(self._serve, input_signature=[spec])
        self.preprocess = tf.function(self._preprocess, input_signature=[spec])

    def _decoded(self, images):
        side = self._pixels.size
        with tf.device('/cpu:0'):
            return tf.map_fn(
                lambda one: self._pixels.decode(*one),
                (images, tf.range(tf.size(images))),
                fn_output_signature=tf.TensorSpec([side, side, 3]),
            )

    def _preprocess(self, images):
        return {'pixels': self._decoded(images)}

    def _serve(self, images):
        pixels = preprocessing.normalize(
            self._decoded(images), self._model.inputs[0].dtype
        )
        logits = self._model(pixels, training=False)[0]
        return {'probabilities': tf.nn.softmax(tf.cast(logits, tf.float32))}


def _with_weights(model, values) -> None:
    for weight in model.weights:
        weight.assign(values[weight.path])


def _write_saved_model(model, pixels, folder) -> None:
    served = _Served(model, pixels)
    tf.saved_model.save(
        served,
        folder,
        signatures={
            'serving_default': served.serve,
            'preprocess': served.preprocess,
        },
    )


def _write_keras(model, path) -> None:
    """Writes the .keras file, unless a layer of somebody's own forbids it."""
    try:
        plain = plain_lib.create_plain(model)
    except errors.UserError as error:
        _log.warning('no %s is written: %s', KERAS_FILE, error)
        return
    plain.save(path)


def write(
    directory: str,
    model: keras.Model,
    values: Mapping[str, np.ndarray],
    pixels: Pixels,
    facts: Mapping[str, Any],
) -> None:
    """Writes an export, in the place of an earlier one.

    Args:
        directory: made where it is absent; gets `saved_model`, from a batch
            of encoded images to probabilities, `model.keras`, from pixels of
            `size` in 0..255 to probabilities, and `export.json`.
        model: from `models.create_model`, in NHWC; gets the weights.
        values: weight by path.
        pixels: what comes before the model.
        facts: for `export.json`.

    Raises:
        UserError: the folder cannot be written.
    """
    _with_weights(model, values)
    try:
        os.makedirs(directory, exist_ok=True)
        partial = tempfile.mkdtemp(prefix='.partial', dir=directory)
        try:
            _write_saved_model(
                model, pixels, os.path.join(partial, SAVED_MODEL)
            )
            _write_keras(model, os.path.join(partial, KERAS_FILE))
            text = json.dumps(facts | dataclasses.asdict(pixels), indent=2)
            with open(os.path.join(partial, FACTS), 'w') as file:
                file.write(text + '\n')
            _move(partial, directory)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except (OSError, tf.errors.OpError) as error:
        text = ' '.join(str(error).split())
        raise errors.UserError(
            f'--export={directory} cannot be written: {text[:300]}'
        ) from None


def _move(partial, directory) -> None:
    for name in (SAVED_MODEL, KERAS_FILE, FACTS):
        old, new = os.path.join(directory, name), os.path.join(partial, name)
        if os.path.isdir(old):
            shutil.rmtree(old)
        elif os.path.exists(old):
            os.remove(old)
        if os.path.exists(new):
            os.replace(new, old)
