"""Random changes of brightness, saturation, hue and contrast.

All of them on 0..255: none depends on the scale of the pixels.
"""

import math
from collections.abc import Callable

import tensorflow as tf

from kbench.preprocessing import draws as draws_lib

# Of the original: brightness by 32 of 255 at most, saturation and contrast
# by half, hue by 0.2 turns, in YIQ by 0.2 pi radians.
MAX_BRIGHTNESS = 32.0
CONTRAST_RANGE = (0.5, 1.5)
SATURATION_RANGE = (0.5, 1.5)
MAX_HUE_TURNS = 0.2
MAX_YIQ_ANGLE = 0.2 * math.pi

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
        draws: from `draws.make_draws`.
        position: of the image in the stream of images.
        yiq: turn hue and saturation in YIQ space, not in HSV.

    Returns:
        float32 (h, w, 3), clipped to 0..255.
    """
    brightness = MAX_BRIGHTNESS * _spread(draws[draws_lib.BRIGHTNESS], -1, 1)
    saturation = _spread(draws[draws_lib.SATURATION], *SATURATION_RANGE)
    contrast = _spread(draws[draws_lib.CONTRAST], *CONTRAST_RANGE)
    hue = _spread(draws[draws_lib.HUE], -1, 1)

    def turn(pixels: tf.Tensor) -> tf.Tensor:
        if yiq:
            return turn_in_yiq(pixels, MAX_YIQ_ANGLE * hue, saturation)
        return turn_in_hsv(pixels, MAX_HUE_TURNS * hue, saturation)

    def stretch(pixels: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.AdjustContrastv2(
            images=pixels, contrast_factor=contrast
        )

    image = _in_order(position % 2 == 0, turn, stretch, image + brightness)
    return tf.minimum(tf.maximum(image, 0.0), 255.0)


def _spread(draw: tf.Tensor, low: float, high: float) -> tf.Tensor:
    return low + (high - low) * draw


def _in_order(
    forward: tf.Tensor | bool,
    first: Callable[[tf.Tensor], tf.Tensor],
    second: Callable[[tf.Tensor], tf.Tensor],
    pixels: tf.Tensor,
) -> tf.Tensor:
    return tf.cond(
        forward,
        lambda: second(first(pixels)),
        lambda: first(second(pixels)),
    )


def turn_in_hsv(
    image: tf.Tensor, turns: tf.Tensor, factor: tf.Tensor
) -> tf.Tensor:
    """Multiplies the saturation, at most up to 1, then turns the hue.

    TensorFlow's two kernels go from RGB to HSV and back each. The same
    written as one formula on planes of colours was slower on photographs,
    and faster on noise only.

    Args:
        image: float32 (h, w, 3).
        turns: by how much of the circle the hue turns, -1..1.
        factor: of the saturation.
    """
    image = tf.raw_ops.AdjustSaturation(images=image, scale=factor)
    return tf.raw_ops.AdjustHue(images=image, delta=turns)


def turn_in_yiq(
    image: tf.Tensor, angle: tf.Tensor, factor: tf.Tensor
) -> tf.Tensor:
    """Turns and scales the chroma plane of YIQ: one 3x3 product per pixel.

    Args:
        image: float32 (h, w, 3).
        angle: in radians.
        factor: of the saturation.
    """
    cos, sin = factor * tf.cos(angle), factor * tf.sin(angle)
    turn = tf.stack([[1.0, 0.0, 0.0], [0.0, cos, -sin], [0.0, sin, cos]])
    matrix = tf.constant(_YIQ_TO_RGB) @ turn @ tf.constant(_RGB_TO_YIQ)
    pixels = tf.reshape(image, [-1, 3])
    turned = tf.matmul(pixels, matrix, transpose_b=True)
    return tf.reshape(turned, tf.shape(image))
