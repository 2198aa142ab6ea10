"""Random changes of brightness, saturation, hue and contrast.

TensorFlow's own AdjustHue and AdjustSaturation visit one pixel after the
other. The same functions written on whole planes of red, green and blue use
the vector units and take half the time; the pixels are the same to 1e-3.
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

    def turn(planes: tf.Tensor) -> tf.Tensor:
        if yiq:
            return turn_in_yiq(planes, MAX_YIQ_ANGLE * hue, saturation)
        return turn_in_hsv(planes, MAX_HUE_TURNS * hue, saturation)

    def stretch(planes: tf.Tensor) -> tf.Tensor:
        return change_contrast(planes, contrast)

    planes = tf.transpose(image, [2, 0, 1]) + brightness
    planes = _in_order(position % 2 == 0, turn, stretch, planes)
    planes = tf.minimum(tf.maximum(planes, 0.0), 255.0)
    return tf.transpose(planes, [1, 2, 0])


def _spread(draw: tf.Tensor, low: float, high: float) -> tf.Tensor:
    return low + (high - low) * draw


def _in_order(
    forward: tf.Tensor | bool,
    first: Callable[[tf.Tensor], tf.Tensor],
    second: Callable[[tf.Tensor], tf.Tensor],
    planes: tf.Tensor,
) -> tf.Tensor:
    return tf.cond(
        forward,
        lambda: second(first(planes)),
        lambda: first(second(planes)),
    )


def change_contrast(planes: tf.Tensor, factor: tf.Tensor) -> tf.Tensor:
    """Spreads each plane about its mean: `(x - mean) * factor + mean`.

    Args:
        planes: float32 (3, h, w).
        factor: float32 scalar.
    """
    mean = tf.reduce_mean(planes, axis=[1, 2], keepdims=True)
    return planes * factor + mean * (1.0 - factor)


def turn_in_hsv(
    planes: tf.Tensor, turns: tf.Tensor, factor: tf.Tensor
) -> tf.Tensor:
    """Multiplies the saturation, then turns the hue.

    With v the largest of a pixel's colours and r the range of the three, the
    saturation is r / v, at most 1: scaling it means scaling r up to v. A
    colour is v - r + r * share(hue), share going from 0 to 1 and back around
    the circle of six sectors, shifted by two sectors from colour to colour.

    Args:
        planes: float32 (3, h, w): red, green, blue.
        turns: by how much of the circle the hue turns, -1..1.
        factor: of the saturation.

    Returns:
        float32 (3, h, w).
    """
    red, green, blue = tf.unstack(planes)
    value = tf.maximum(tf.maximum(red, green), blue)
    span = value - tf.minimum(tf.minimum(red, green), blue)
    double = span + span
    sector = tf.where(
        tf.equal(value, red),
        green - blue,
        tf.where(
            tf.equal(value, green),
            blue - red + double,
            red - green + (double + double),
        ),
    )
    # Grey has a span of 0 and any hue; the bound keeps it finite.
    hue = sector / tf.maximum(span, 1e-6) + 6.0 * turns
    hue = tf.where(hue < 0.0, hue + 6.0, hue)
    hue = tf.where(hue >= 6.0, hue - 6.0, hue)
    span = tf.minimum(tf.maximum(value, 0.0), factor * span)
    base = value - span

    def share(distance: tf.Tensor) -> tf.Tensor:
        return tf.minimum(tf.maximum(distance, 0.0), 1.0)

    return tf.stack(
        [
            base + span * share(tf.abs(hue - 3.0) - 1.0),
            base + span * share(2.0 - tf.abs(hue - 2.0)),
            base + span * share(2.0 - tf.abs(hue - 4.0)),
        ]
    )


def turn_in_yiq(
    planes: tf.Tensor, angle: tf.Tensor, factor: tf.Tensor
) -> tf.Tensor:
    """Turns and scales the chroma plane of YIQ: one 3x3 product per pixel.

    Args:
        planes: float32 (3, h, w): red, green, blue.
        angle: in radians.
        factor: of the saturation.

    Returns:
        float32 (3, h, w).
    """
    cos, sin = factor * tf.cos(angle), factor * tf.sin(angle)
    turn = tf.stack([[1.0, 0.0, 0.0], [0.0, cos, -sin], [0.0, sin, cos]])
    matrix = tf.constant(_YIQ_TO_RGB) @ turn @ tf.constant(_RGB_TO_YIQ)
    pixels = tf.matmul(matrix, tf.reshape(planes, [3, -1]))
    return tf.reshape(pixels, tf.shape(planes))
