"""Encoded bytes to RGB pixels, of a JPEG only the window that is used."""

from collections.abc import Callable

import tensorflow as tf

Window = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


def decode(encoded: tf.Tensor) -> tf.Tensor:
    """Decodes a JPEG, PNG, GIF or BMP of any colour space into RGB.

    Args:
        encoded: scalar string.

    Returns:
        uint8 (height, width, 3).

    Raises:
        tf.errors.InvalidArgumentError: no image, or a broken one.
    """
    image = tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: _decode_jpeg(encoded),
        lambda: _decode_other(encoded),
    )
    return tf.ensure_shape(image, [None, None, 3])


def _decode_jpeg(encoded: tf.Tensor) -> tf.Tensor:
    return tf.io.decode_jpeg(encoded, 3, dct_method='INTEGER_ACCURATE')


def _decode_other(encoded: tf.Tensor) -> tf.Tensor:
    return tf.io.decode_image(encoded, 3, expand_animations=False)


def decode_window(
    encoded: tf.Tensor,
    window_of: Window,
    fused: bool,
) -> tf.Tensor:
    """Decodes a window of an image; of a JPEG, only the window.

    Args:
        encoded: scalar string.
        window_of: from int32 height and width to the window, int32 (4,): top,
            left, height, width.
        fused: False decodes the whole image first.

    Returns:
        uint8 (window height, window width, 3).
    """

    def jpeg() -> tf.Tensor:
        if not fused:
            return _slice(_decode_jpeg(encoded), window_of)
        shape = tf.io.extract_jpeg_shape(encoded)
        return tf.io.decode_and_crop_jpeg(
            encoded,
            window_of(shape[0], shape[1]),
            channels=3,
            dct_method='INTEGER_ACCURATE',
        )

    def other() -> tf.Tensor:
        return _slice(_decode_other(encoded), window_of)

    image = tf.cond(tf.io.is_jpeg(encoded), jpeg, other)
    return tf.ensure_shape(image, [None, None, 3])


def _slice(image: tf.Tensor, window_of: Window) -> tf.Tensor:
    shape = tf.shape(image)
    top, left, height, width = tf.unstack(window_of(shape[0], shape[1]))
    return image[top : top + height, left : left + width]
