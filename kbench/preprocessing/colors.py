"""The scale of the pixels, and random changes of their colours.

The changes work on 0..255; none of them depends on the scale.
"""

import functools
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


def normalize(images: tf.Tensor, dtype: str | tf.DType) -> tf.Tensor:
    """Maps 0..255 to -1..1, in the compute dtype.

    Args:
        images: any shape, uint8 or float32, 0..255.
        dtype: of the result.

    Returns:
        `images / 127.5 - 1`, computed in float32 so that no value of a byte
        is lost before the cast.
    """
    scaled = tf.cast(images, tf.float32) * (1 / 127.5) - 1.0
    return tf.cast(scaled, dtype)


def distort_color(
    image: tf.Tensor,
    draws: tf.Tensor,
    position: tf.Tensor | int,
    yiq: bool,
    dtype: str | None = None,
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
        dtype: the result is normalized into this; None = it is not.

    Returns:
        (h, w, 3): float32, clipped to 0..255, or -1..1 in `dtype`.
    """
    changes = tf.stack(
        [
            MAX_BRIGHTNESS * _spread(draws[draws_lib.BRIGHTNESS], -1, 1),
            _spread(draws[draws_lib.SATURATION], *SATURATION_RANGE),
            _spread(draws[draws_lib.CONTRAST], *CONTRAST_RANGE),
            _spread(draws[draws_lib.HUE], -1, 1),
        ]
    )
    return tf.cond(
        position % 2 == 0,
        lambda: _make_distortion(True, yiq, dtype)(image, changes),
        lambda: _make_distortion(False, yiq, dtype)(image, changes),
    )


@functools.cache
def _make_distortion(
    contrast_last: bool, yiq: bool, dtype: str | None
) -> Callable:
    """Compiles the changes in one order: one pass over the pixels.

    Compiled, the four take about half of the time of TensorFlow's kernels,
    which go from RGB to HSV and back for each of two changes.
    """

    @tf.function(jit_compile=True, autograph=False)
    def distort(image, changes):
        brightness, saturation, contrast, hue = tf.unstack(changes)

        def turn(planes):
            if yiq:
                return turn_in_yiq(planes, MAX_YIQ_ANGLE * hue, saturation)
            return turn_in_hsv(planes, MAX_HUE_TURNS * hue, saturation)

        def stretch(planes):
            means = _means(planes)
            return (planes - means) * contrast + means

        # XLA vectorizes over the pixels of a colour, not over triples.
        planes = tf.transpose(tf.reshape(image, [-1, 3])) + brightness
        first, second = (turn, stretch) if contrast_last else (stretch, turn)
        planes = tf.clip_by_value(second(first(planes)), 0.0, 255.0)
        if dtype is not None:
            planes = normalize(planes, dtype)
        return tf.reshape(tf.transpose(planes), image.shape)

    return distort


def _means(planes: tf.Tensor) -> tf.Tensor:
    """The mean of each colour, (3, 1): XLA sums faster by a product."""
    count = planes.shape[1]
    return planes @ tf.ones([count, 1]) * (1 / count)


def _spread(draw: tf.Tensor, low: float, high: float) -> tf.Tensor:
    return low + (high - low) * draw


def turn_in_hsv(
    planes: tf.Tensor, turns: tf.Tensor, factor: tf.Tensor
) -> tf.Tensor:
    """Multiplies the saturation, at most up to 1, then turns the hue.

    In HSV: V, the brightest colour, stays; the chroma C = V - the darkest
    one becomes min(V, factor * C); each colour is V - C * max(0, min(k, 4 -
    k, 1)) with k = (n + 6 * hue) mod 6 and n = 5, 3, 1 for red, green, blue
    (Smith 1978 in its closed form).

    Args:
        planes: float32 (3, pixels): red, green, blue.
        turns: by how much of the circle the hue turns, -1..1.
        factor: of the saturation.
    """
    red, green, blue = tf.unstack(planes)
    value = tf.maximum(tf.maximum(red, green), blue)
    chroma = value - tf.minimum(tf.minimum(red, green), blue)
    inverse = tf.where(chroma > 0, 1.0 / chroma, 0.0)
    sextant = tf.where(
        value == red,
        (green - blue) * inverse,
        tf.where(
            value == green,
            (blue - red) * inverse + 2.0,
            (red - green) * inverse + 4.0,
        ),
    )
    # A pixel below black has no saturation.
    chroma = tf.maximum(tf.minimum(value, chroma * factor), 0.0)
    colors = []
    for n in (5.0, 3.0, 1.0):
        k = sextant + (n + 6.0 * turns)
        k -= 6.0 * tf.floor(k * (1 / 6))
        share = tf.maximum(tf.minimum(tf.minimum(k, 4.0 - k), 1.0), 0.0)
        colors.append(value - chroma * share)
    return tf.stack(colors)


def turn_in_yiq(
    planes: tf.Tensor, angle: tf.Tensor, factor: tf.Tensor
) -> tf.Tensor:
    """Turns and scales the chroma plane of YIQ: one 3x3 product per pixel.

    Args:
        planes: float32 (3, pixels): red, green, blue.
        angle: in radians.
        factor: of the saturation.
    """
    cos, sin = factor * tf.cos(angle), factor * tf.sin(angle)
    turn = tf.stack([[1.0, 0.0, 0.0], [0.0, cos, -sin], [0.0, sin, cos]])
    matrix = tf.constant(_YIQ_TO_RGB) @ turn @ tf.constant(_RGB_TO_YIQ)
    return matrix @ planes
