"""Pixels against NumPy and Pillow, on real photographs."""

import colorsys
import io
import math

import input_helpers as helpers
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from kbench import preprocessing
from kbench.preprocessing import colors, decoding, draws, geometry


def _pixels(name: str) -> np.ndarray:
    return np.asarray(helpers.photo(name))


@pytest.mark.parametrize('name', list(helpers.PHOTOS))
def test_decoding_agrees_with_pillow(name):
    image = preprocessing.decode(tf.constant(helpers.photo_bytes(name)))
    assert image.dtype == tf.uint8
    np.testing.assert_array_equal(image, _pixels(name))


@pytest.mark.parametrize(
    ('file_format', 'mode'),
    [('JPEG', 'RGB'), ('JPEG', 'L'), ('JPEG', 'CMYK')]
    + [('PNG', mode) for mode in ('RGB', 'L', 'RGBA', 'P', 'LA', '1')]
    + [('GIF', 'P'), ('GIF', 'L'), ('BMP', 'RGB')],
)
def test_formats_and_colour_spaces(file_format, mode):
    image = helpers.photo('china').resize((64, 48)).convert(mode)
    encoded = helpers.encode(image, file_format)
    expected = np.asarray(Image.open(io.BytesIO(encoded)).convert('RGB'), float)
    decoded = preprocessing.decode(tf.constant(encoded)).numpy()
    assert decoded.shape == (48, 64, 3)
    # How CMYK becomes RGB is a convention: one level apart by rounding.
    tolerance = 1 if mode == 'CMYK' else 0
    np.testing.assert_allclose(decoded, expected, atol=tolerance)


@pytest.mark.parametrize('window', [[0, 0, 427, 640], [33, 57, 200, 301]])
@pytest.mark.parametrize('encoding', ['JPEG', 'PNG'])
def test_a_window_is_a_part_of_the_whole(window, encoding):
    encoded = helpers.photo_bytes('china')
    if encoding == 'PNG':
        encoded = helpers.encode(helpers.photo('china'), 'PNG')
    encoded = tf.constant(encoded)
    whole = preprocessing.decode(encoded).numpy()
    top, left, height, width = window
    expected = whole[top : top + height, left : left + width]
    for fused in (True, False):
        found = decoding.decode_window(
            encoded, lambda h, w: tf.constant(window), fused
        ).numpy()
        assert found.shape == expected.shape
        # The window's border is upsampled without its neighbours.
        np.testing.assert_array_equal(found[2:-2, 2:-2], expected[2:-2, 2:-2])


def _grid(size: int, target: int) -> tuple[np.ndarray, ...]:
    """Source rows and weights of bilinear sampling, half-pixel centres."""
    centres = (np.arange(target) + 0.5) * size / target - 0.5
    low = np.floor(centres)
    share = centres - low
    clip = lambda index: np.clip(index, 0, size - 1).astype(int)  # noqa: E731
    return clip(low), clip(low + 1), share


def _bilinear(image: np.ndarray, height: int, width: int) -> np.ndarray:
    low, high, share = _grid(image.shape[0], height)
    share = share[:, None, None]
    rows = image[low] * (1 - share) + image[high] * share
    low, high, share = _grid(image.shape[1], width)
    share = share[None, :, None]
    return rows[:, low] * (1 - share) + rows[:, high] * share


def _area(image: np.ndarray, height: int, width: int) -> np.ndarray:
    def weights(size: int, target: int) -> np.ndarray:
        edges = np.arange(target + 1) * size / target
        cells = np.arange(size)
        overlap = np.minimum(edges[1:, None], cells + 1) - np.maximum(
            edges[:-1, None], cells
        )
        return np.clip(overlap, 0, None) * target / size

    rows = np.einsum('oi,iwc->owc', weights(image.shape[0], height), image)
    return np.einsum('oi,hic->hoc', weights(image.shape[1], width), rows)


def _nearest(image: np.ndarray, height: int, width: int) -> np.ndarray:
    rows = ((np.arange(height) + 0.5) * image.shape[0] / height).astype(int)
    columns = ((np.arange(width) + 0.5) * image.shape[1] / width).astype(int)
    return image[rows][:, columns]


@pytest.mark.parametrize('target', [(224, 224), (600, 700), (427, 100)])
@pytest.mark.parametrize(
    ('method', 'reference', 'tolerance'),
    [
        ('bilinear', _bilinear, 2e-2),
        ('area', _area, 2e-2),
        ('nearest', _nearest, 0),
    ],
)
def test_resizing_agrees_with_numpy(target, method, reference, tolerance):
    image = _pixels('china')
    found = geometry.resize(image, *target, method).numpy()
    expected = reference(image.astype(np.float64), *target)
    if method == 'nearest':
        assert found.dtype == np.uint8
    # Pixel centres are computed in float32, hence the tolerance in levels.
    np.testing.assert_allclose(found, expected, atol=tolerance)


def _bicubic(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Keys's cubic with a = -0.5; taps outside the image weigh nothing."""

    def kernel(x: np.ndarray) -> np.ndarray:
        x = np.abs(x)
        near = 1.5 * x**3 - 2.5 * x**2 + 1
        far = -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
        return np.where(x < 1, near, np.where(x < 2, far, 0))

    def weights(size: int, target: int) -> np.ndarray:
        centres = (np.arange(target) + 0.5) * size / target - 0.5
        table = kernel(centres[:, None] - np.arange(size))
        return table / table.sum(1, keepdims=True)

    rows = np.einsum('oi,iwc->owc', weights(image.shape[0], height), image)
    return np.einsum('oi,hic->hoc', weights(image.shape[1], width), rows)


@pytest.mark.parametrize('target', [(224, 224), (600, 700)])
def test_bicubic_agrees_with_numpy(target):
    image = _pixels('flower')
    found = geometry.resize(image, *target, 'bicubic').numpy()
    expected = np.clip(_bicubic(image.astype(float), *target), 0, 255)
    # TensorFlow looks the kernel up in a table of 1024 places.
    np.testing.assert_allclose(found, expected, atol=0.6)
    assert np.abs(found - expected).mean() < 0.05


def test_round_robin_goes_by_the_position():
    image = _pixels('flower')
    for position in range(8):
        name = geometry.RESIZE_METHODS[position % 4]
        np.testing.assert_array_equal(
            geometry.resize(image, 50, 60, 'round_robin', position),
            tf.cast(geometry.resize(image, 50, 60, name), tf.float32),
        )


def test_boxes_are_cleaned():
    boxes = [
        [-0.1, 0.2, 0.5, 1.2],
        [0.5, 0.5, 0.5, 0.9],
        [0.9, 0.1, 0.2, 0.3],
        [1.1, 0.1, 1.3, 0.3],
    ]
    np.testing.assert_allclose(
        geometry.clean_boxes(tf.constant(boxes)),
        [[0, 0.2, 0.5, 1], [0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]],
    )
    assert geometry.clean_boxes(tf.zeros([0, 4])).shape == (0, 4)


def test_sampled_windows_obey_their_bounds():
    height, width = 375, 500
    box = tf.constant([[0.2, 0.3, 0.6, 0.7]])
    object_area = 0.4 * 0.4 * height * width
    windows = np.array(
        [
            geometry.sample_window(
                tf.constant(height),
                tf.constant(width),
                box,
                tf.constant([7, i], tf.int64),
            )
            for i in range(300)
        ]
    )
    top, left, h, w = windows.T
    assert (top >= 0).all() and (top + h <= height).all()
    assert (left >= 0).all() and (left + w <= width).all()
    share = h * w / (height * width)
    assert share.min() >= 0.05 - 0.005 and share.max() <= 1
    assert share.min() < 0.15 and share.max() > 0.8
    # One pixel of rounding on the shorter side.
    ratio = w / h
    assert ratio.min() > 0.75 - 0.02 and ratio.max() < 4 / 3 + 0.02
    rows = np.minimum(top + h, 0.6 * height) - np.maximum(top, 0.2 * height)
    columns = np.minimum(left + w, 0.7 * width) - np.maximum(left, 0.3 * width)
    covered = np.clip(rows, 0, None) * np.clip(columns, 0, None)
    assert (covered / object_area).min() >= 0.1 - 0.02


def test_no_legal_window_gives_the_whole_image():
    # A strip of 2000 x 10 holds no window of 5 % with a ratio near 1.
    window = geometry.sample_window(
        tf.constant(10),
        tf.constant(2000),
        tf.zeros([0, 4]),
        tf.constant([1, 2], tf.int64),
    )
    np.testing.assert_array_equal(window, [0, 0, 10, 2000])


def _hsv_reference(image, turns, factor):
    out = np.empty_like(image)
    for place in np.ndindex(image.shape[:2]):
        hue, saturation, value = colorsys.rgb_to_hsv(*image[place])
        saturation = min(1.0, saturation * factor)
        out[place] = colorsys.hsv_to_rgb((hue + turns) % 1, saturation, value)
    return out


def _small(name: str = 'flower') -> np.ndarray:
    """A real photograph, small enough for a loop over its pixels."""
    image = helpers.photo(name).resize((48, 40))
    return np.asarray(image).astype(np.float64)


def _float(image):
    return tf.constant(image.astype(np.float32))


def _planes(image):
    return tf.transpose(tf.reshape(_float(image), [-1, 3]))


def _image(planes, shape):
    return planes.numpy().T.reshape(shape)


@pytest.mark.parametrize(
    ('turns', 'factor'), [(0, 1), (0.2, 0.5), (-0.2, 1.5), (0.07, 1.2)]
)
def test_hue_and_saturation_agree_with_colorsys(turns, factor):
    image = _small()
    image[0, 0] = 0
    image[0, 1] = 128
    found = colors.turn_in_hsv(
        _planes(image), tf.constant(float(turns)), tf.constant(float(factor))
    )
    np.testing.assert_allclose(
        _image(found, image.shape),
        _hsv_reference(image, turns, factor),
        atol=5e-3,
    )


@pytest.mark.parametrize(('angle', 'factor'), [(0, 1), (0.6, 0.5), (-0.3, 1.5)])
def test_yiq_agrees_with_numpy(angle, factor):
    image = _small()
    to_yiq = np.array(
        [
            [0.299, 0.587, 0.114],
            [0.59590059, -0.27455667, -0.32134392],
            [0.21153661, -0.52273617, 0.31119955],
        ]
    )
    y, i, q = np.moveaxis(image @ to_yiq.T, -1, 0)
    chroma = (i + 1j * q) * factor * np.exp(1j * angle)
    yiq = np.stack([y, chroma.real, chroma.imag], -1)
    expected = yiq @ np.linalg.inv(to_yiq).T
    found = colors.turn_in_yiq(
        _planes(image), tf.constant(float(angle)), tf.constant(float(factor))
    )
    np.testing.assert_allclose(_image(found, image.shape), expected, atol=1e-2)


@pytest.mark.parametrize('position', [0, 1])
@pytest.mark.parametrize('yiq', [False, True])
def test_the_order_of_the_colours(position, yiq):
    image = _small()
    uniform = np.array([0, 0.9, 0.8, 0.3, 0.25, 0, 0, 0], np.float32)
    brightness = 32 * (2 * uniform[draws.BRIGHTNESS] - 1)
    saturation = 0.5 + uniform[draws.SATURATION]
    contrast = 0.5 + uniform[draws.CONTRAST]
    hue = 2 * uniform[draws.HUE] - 1

    def turn(pixels):
        if not yiq:
            return _hsv_reference(pixels, 0.2 * hue, saturation)
        turned = colors.turn_in_yiq(
            _planes(pixels),
            tf.constant(0.2 * math.pi * hue, tf.float32),
            tf.constant(saturation),
        )
        return _image(turned, pixels.shape)

    def stretch(pixels):
        mean = pixels.mean((0, 1), keepdims=True)
        return (pixels - mean) * contrast + mean

    expected = image + brightness
    steps = (stretch, turn) if position else (turn, stretch)
    for step in steps:
        expected = step(expected)
    # colorsys knows no colours below black, so the photograph has none.
    found = colors.distort_color(
        tf.constant(image, tf.float32), tf.constant(uniform), position, yiq
    )
    inside = expected.min(-1) > 0
    assert inside.mean() > 0.5
    np.testing.assert_allclose(
        found.numpy()[inside], np.clip(expected, 0, 255)[inside], atol=1e-2
    )


def test_a_training_picture_is_its_parts_in_order():
    encoded = tf.constant(helpers.photo_bytes('china'))
    whole = preprocessing.decode(encoded).numpy()
    mirrored = 0
    for i in range(6):
        seed = tf.constant([3, i], tf.int64)
        uniform = draws.make_draws(seed)
        top, left, height, width = geometry.sample_window(
            tf.constant(427), tf.constant(640), tf.zeros([0, 4]), seed
        ).numpy()
        part = whole[top : top + height, left : left + width].astype(float)
        if uniform[draws.FLIP] < 0.5:
            part = part[:, ::-1]
            mirrored += 1
        expected = _bilinear(part, 96, 96)
        found = preprocessing.train_image(
            encoded,
            tf.zeros([0, 4]),
            seed,
            i,
            size=96,
            distortions=False,
            resize_method='bilinear',
            fused=True,
            yiq=False,
        )
        difference = np.abs(found.numpy() - expected)
        # Only the border of the window is decoded differently.
        assert difference[3:-3, 3:-3].max() < 0.05
        assert difference.max() < 60
    assert 0 < mirrored < 6


@pytest.mark.parametrize('name', ['china', 'rocket'])
def test_evaluation_crops(name):
    encoded = tf.constant(helpers.photo_bytes(name))
    whole = preprocessing.decode(encoded).numpy().astype(float)
    height, width = whole.shape[:2]
    # vgg: the shorter side becomes 1.15 x 96 = 110 pixels.
    scaled = _bilinear(whole, 110, int(width * 96 * 1.15 / height))
    left = (scaled.shape[1] - 96) // 2
    expected = {'vgg': scaled[7:103, left : left + 96]}
    rows, columns = int(height / 16), int(width / 16)
    inner = whole[rows : height - rows, columns : width - columns]
    expected['inception'] = _bilinear(inner, 96, 96)
    for method, reference in expected.items():
        found = preprocessing.eval_image(
            encoded,
            0,
            size=96,
            eval_method=method,
            resize_method='bilinear',
        )
        assert found.dtype == tf.float32
        np.testing.assert_allclose(found, reference, atol=0.1)


def test_small_images_are_padded_cropped_and_mirrored():
    image = np.asarray(helpers.photo('china').resize((32, 32)))
    padded = np.pad(image, [(4, 4), (4, 4), (0, 0)])
    seen = set()
    for i in range(64):
        seed = tf.constant([9, i], tf.int64)
        uniform = draws.make_draws(seed).numpy()
        top, left = (int(uniform[k] * 9) for k in (draws.TOP, draws.LEFT))
        expected = padded[top : top + 32, left : left + 32]
        if uniform[draws.FLIP] < 0.5:
            expected = expected[:, ::-1]
        found = preprocessing.train_small_image(
            tf.constant(image), seed, size=32, distortions=True, mirror=True
        )
        assert found.dtype == tf.uint8
        np.testing.assert_array_equal(found, expected)
        seen.add((top, left))
    assert len(seen) > 30
    still = preprocessing.train_small_image(
        tf.constant(image), seed, size=32, distortions=False, mirror=True
    )
    np.testing.assert_array_equal(still, image)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16'])
def test_normalize(dtype):
    images = tf.range(256, dtype=tf.int32)
    expected = np.arange(256) / 127.5 - 1
    for given in (tf.uint8, tf.float32):
        found = preprocessing.normalize(tf.cast(images, given), dtype)
        assert found.dtype == dtype
        np.testing.assert_allclose(
            tf.cast(found, tf.float64),
            expected,
            atol=1e-6 if dtype == 'float32' else 4e-3,
        )


@pytest.mark.parametrize('yiq', [False, True])
@pytest.mark.parametrize('method', ['crop', 'round_robin', 'bicubic'])
def test_eager_equals_tf_data(yiq, method):
    encoded = tf.constant(helpers.photo_bytes('rocket'))

    def make(position):
        return preprocessing.train_image(
            encoded,
            tf.zeros([0, 4]),
            tf.stack([tf.constant(1, tf.int64), position]),
            position,
            size=64,
            distortions=True,
            resize_method=method,
            fused=True,
            yiq=yiq,
        )

    mapped = tf.data.Dataset.range(4).map(make, num_parallel_calls=4)
    for position, image in enumerate(mapped):
        np.testing.assert_allclose(
            image, make(tf.constant(position, tf.int64)), atol=1e-3
        )
