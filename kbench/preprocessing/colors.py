"""Random changes of brightness, saturation, hue and contrast."""

import math

import tensorflow as tf

from kbench.preprocessing import draws as draws_lib

# NTSC 1953, as TensorFlow's own YIQ functions have it.
_RGB_TO_YIQ = (
    (0.299, 0.587, 0.114),
    (0.59590059, -0.27455667, -0.32134392),
    (0.21153661, -0.52273617, 0.31119955),
)
_YIQ_TO_RGB = (
    (1.0, 0.95598634, 0.6208248),
    (1.0, -0.27201283, -0.64720424),
    (1.0, -1.10674021, 1.70423049),
)


def distort_color(
    image: tf.Tensor, draws: tf.Tensor, position: tf.Tensor | int, yiq: bool
) -> tf.Tensor:
    """Changes brightness, saturation, hue and contrast at random.

    Even positions change the contrast last, odd ones after the brightness.
    None of the four depends on the scale of the pixels, so they work on
    0..255 as they would on 0..1.

    Args:
        image: float32 (h, w, 3), 0..255.
        draws: from `make_draws`.
        position: of the image in the stream of images.
        yiq: turn hue and saturation in YIQ space, not in HSV.

    Returns:
        float32 (h, w, 3), clipped to 0..255.
    """
    image += 32.0 * (2.0 * draws[draws_lib.BRIGHTNESS] - 1.0)
    saturation = 0.5 + draws[draws_lib.SATURATION]
    hue_draw = 2.0 * draws[draws_lib.HUE] - 1.0
    contrast = 0.5 + draws[draws_lib.CONTRAST]

    def hue_and_saturation(pixels: tf.Tensor) -> tf.Tensor:
        if yiq:
            # 0.2 pi radians at most, as in the original.
            return _hue_in_yiq(pixels, 0.2 * math.pi * hue_draw, saturation)
        pixels = tf.raw_ops.AdjustSaturation(images=pixels, scale=saturation)
        return tf.raw_ops.AdjustHue(images=pixels, delta=0.2 * hue_draw)

    def contrast_of(pixels: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.AdjustContrastv2(
            images=pixels, contrast_factor=contrast
        )

    image = tf.cond(
        position % 2 == 0,
        lambda: contrast_of(hue_and_saturation(image)),
        lambda: hue_and_saturation(contrast_of(image)),
    )
    return tf.clip_by_value(image, 0.0, 255.0)


def _hue_in_yiq(
    image: tf.Tensor, angle: tf.Tensor, saturation: tf.Tensor
) -> tf.Tensor:
    """Rotates and scales the chroma plane: one 3x3 product per pixel."""
    cos = saturation * tf.cos(angle)
    sin = saturation * tf.sin(angle)
    turn = tf.stack([[1.0, 0.0, 0.0], [0.0, cos, -sin], [0.0, sin, cos]])
    matrix = tf.constant(_YIQ_TO_RGB) @ turn @ tf.constant(_RGB_TO_YIQ)
    shape = tf.shape(image)
    pixels = tf.reshape(image, [-1, 3])
    return tf.reshape(tf.matmul(pixels, matrix, transpose_b=True), shape)
