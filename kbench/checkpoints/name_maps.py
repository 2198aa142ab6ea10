"""Names of tf_cnn_benchmarks and tf-imagenet, and what they are here.

tf_cnn_benchmarks numbers its convolutions, batch norms and dense layers in
the order in which it makes them, over the whole network: that order is known
for residual networks and for chains of layers. The networks that it and
tf-imagenet took from slim have names with a meaning, which are translated.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from kbench.checkpoints import files, restoring
from kbench.checkpoints.keras_files import MOBILENET_V2_BLOCKS

AVERAGE = '/ExponentialMovingAverage'
# `v`, or `v` and the number of the tower; `cg` is the network.
_TOP = re.compile(r'^(?:v\d*/)?(?:cg/)?')
_NORM = r'(?P<role>gamma|beta|moving_mean|moving_variance)'
_ROLES = {'weights': 'kernel', 'biases': 'bias', 'depthwise_weights': 'kernel'}

# Layers that are numbered: how their variables end, kind.
_NUMBERED = (
    (r'conv(?P<n>\d+)/conv2d/(?P<role>kernel)', 'conv'),
    (r'conv(?P<n>\d+)/(?P<role>biases)', 'conv'),
    (rf'batchnorm(?P<n>\d+)/{_NORM}', 'norm'),
    (r'affine(?P<n>\d+)/(?P<role>weights|biases)', 'dense'),
    # The official residual networks.
    (r'resnet_model/conv2d(?:_(?P<n>\d+))?/(?P<role>kernel)', 'conv'),
    (rf'resnet_model/batch_normalization(?:_(?P<n>\d+))?/{_NORM}', 'norm'),
    (r'resnet_model/dense(?:_(?P<n>\d+))?/(?P<role>kernel|bias)', 'dense'),
)
_SLIM = re.compile(
    r'(?P<net>resnet_v[12]_\d+|MobilenetV[12]|MobileNetV[12])/(?P<layer>.*?)'
    rf'(?:/(?:BatchNorm/)?(?P<norm>{_NORM[len("(?P<role>") : -1]})'
    r'|/(?P<role>weights|biases|depthwise_weights))'
)


@dataclasses.dataclass
class Translated:
    """What a checkpoint of the originals is here.

    Attributes:
        values: array by our name; what has no name here keeps its own.
        notes: lines that the user should read.
    """

    values: dict[str, np.ndarray]
    notes: list[str]


def is_original(names: Sequence[str]) -> bool:
    """Whether the names are those of the originals."""
    return any(
        '/cg/' in name or _SLIM.search(name) or 'resnet_model/' in name
        for name in names
    )


def _slim_resnet(layer):
    """Our layer, without the end that tells convolution and batch norm."""
    match = re.fullmatch(
        r'block(\d)/unit_(\d+)/bottleneck_v\d/(shortcut|preact|conv(\d))', layer
    )
    if match is None:
        return {'conv1': 'stem', 'postnorm': 'post'}.get(layer, layer)
    stage, block, part, number = match.groups()
    return f'stage{stage}_block{block}_' + (
        number or {'preact': 'pre', 'shortcut': 'shortcut'}[part]
    )


def _slim_mobilenet_v1(layer):
    match = re.fullmatch(r'Conv2d_(\d+)(_depthwise|_pointwise)?', layer)
    if match is None:
        return layer
    depthwise = '_depthwise' if match[2] == '_depthwise' else ''
    return f'conv{int(match[1]) + 1}{depthwise}'


def _slim_mobilenet_v2(layer):
    fixed = {'Conv': 'stem', 'Conv_1': 'last', 'Conv2d_0': 'stem'}
    fixed['Conv2d_18'] = 'last'
    match = re.fullmatch(
        r'expanded_conv(?:_(\d+))?/(expand|depthwise|project)', layer
    ) or re.fullmatch(
        # The names of tf-imagenet, whose blocks count from 1.
        r'Conv2d_(\d+)_(up_pointwise|depthwise|down_pointwise)',
        layer,
    )
    if match is None:
        return fixed.get(layer, layer)
    index = int(match[1] or 0) - layer.startswith('Conv2d')
    stage, block = MOBILENET_V2_BLOCKS[index]
    part = {'up_pointwise': 'expand', 'down_pointwise': 'project'}
    return f'stage{stage}_block{block}_{part.get(match[2], match[2])}'


_SLIM_LAYERS = {
    'resnet': _slim_resnet,
    'mobilenetv1': _slim_mobilenet_v1,
    'mobilenetv2': _slim_mobilenet_v2,
}
_SLIM_HEADS = ('logits', 'Logits/Conv2d_1c_1x1')


def _slim_name(match, weights):
    net = match['net'].lower()
    rename = _SLIM_LAYERS['resnet' if net.startswith('resnet') else net]
    layer = match['layer']
    if layer in _SLIM_HEADS:
        return f'logits/{_ROLES.get(match["role"], match["role"])}'
    layer = rename(layer)
    if match['norm']:
        # A batch norm in front of a convolution has a name of its own.
        plain = f'{layer}/{match["norm"]}'
        return plain if plain in weights else f'{layer}_bn/{match["norm"]}'
    if match['role'] == 'depthwise_weights':
        return f'{layer}_conv/depthwise_kernel'
    return f'{layer}_conv/{_ROLES[match["role"]]}'


def _order_of_creation(name: str):
    """Sorts the layers of our residual networks as the original makes them."""
    layer = name.rpartition('/')[0]
    match = re.match(r'stage(\d+)_block(\d+)_(\w+)', layer)
    if match is None:
        place = {'stem': 0, 'post': 2, 'logits': 3}
        return (place.get(layer.partition('_')[0], 4), 0, 0, 0)
    part = match[3].partition('_')[0]
    places = {'pre': 0, 'shortcut': 1}
    return (1, int(match[1]), int(match[2]), places.get(part) or _number(part))


def _number(part):
    return 1 + int(part) if part.isdigit() else 0


def _ours_by_number(weights, model):
    """(kind, number, role) to name, as the original would number them."""
    layers: dict[str, dict[str, str]] = {}
    for name in weights:
        layer, _, role = name.rpartition('/')
        layers.setdefault(layer, {})[role] = name
    ordered = list(layers.values())
    if 'resnet' in model:
        ordered.sort(key=lambda layer: _order_of_creation(min(layer.values())))
    counts = {'conv': 0, 'norm': 0, 'dense': 0}
    found = {}
    for layer in ordered:
        kernel = layer.get('kernel')
        kind = 'norm'
        if kernel is not None:
            kind = 'conv' if len(weights[kernel]) == 4 else 'dense'
        for role, name in layer.items():
            found[kind, counts[kind], role] = name
        counts[kind] += 1
    return found


def _translator(names, weights, model) -> Callable[[str], str | None]:
    by_number = {}
    # Beside a network of slim only the classifier behind it is numbered.
    if not any(_SLIM.fullmatch(_TOP.sub('', name)) for name in names):
        by_number = _ours_by_number(weights, model)

    def translate(name):
        name = _TOP.sub('', name)
        slim = _SLIM.fullmatch(name)
        if slim is not None:
            return _slim_name(slim, weights)
        for pattern, kind in _NUMBERED:
            match = re.fullmatch(rf'(?:.*/)?{pattern}', name)
            if match is not None:
                role = _ROLES.get(match['role'], match['role'])
                key = (kind, int(match['n'] or 0), role)
                return by_number.get(key, f'{kind}{key[1]}/{role}')
        return None

    return translate


# Our models that have the layers of the originals in a known order.
_LEGAL = r'.*resnet.*|vgg(11|16|19)|mobilenet.*|lenet|alexnet|overfeat|trivial'
# Where our network computes something else with the same weights: see
# docs/models.md, "What kbench repairs".
_DIFFERENCES = (
    (
        r'resnet(20|32|44|56|110)',
        'the original had no ReLU behind its first convolution',
    ),
    (
        r'(official_)?resnet.*(18|34|50|101|152|200).*',
        'the original padded the pool behind its first convolution on one '
        'side only',
    ),
    (
        r'resnet.*_v2',
        'the batch norms in front of the convolutions had an epsilon of 0.001',
    ),
)


def translate(
    path: str,
    values: Mapping[str, np.ndarray],
    weights: Mapping[str, Sequence[int]],
    model: str,
    data_format: str,
) -> Translated:
    """Gives the variables of an original our names.

    Args:
        path: the checkpoint, for messages.
        values: array by name.
        weights: shape of the model's weights by name, in their order.
        model: name of the model in the table.
        data_format: in which the original was trained, NCHW or NHWC: the
            first dense layer behind images has its rows in that order.

    Raises:
        CheckpointError: no map is known for the model.
    """
    if not re.fullmatch(_LEGAL, model):
        raise files.CheckpointError(
            f'{path} is a checkpoint of tf_cnn_benchmarks or tf-imagenet, '
            f'whose names are not known for model {model}: legal are the '
            'resnet, vgg and mobilenet models, lenet, alexnet, overfeat and '
            'trivial'
        )
    rename = _translator(values, weights, model)
    found, mapped = {}, set()
    for name, value in values.items():
        base = name.removesuffix(AVERAGE)
        new = rename(base)
        if new is None:
            # Steps, loss scales and slots.
            found[name] = value
            continue
        mapped.add(new)
        found[new + name[len(base) :]] = value
    notes = [
        f'{path} is of an original, and {text}: with the same weights the '
        'outputs differ here, so train on from it'
        for pattern, text in _DIFFERENCES
        if re.fullmatch(pattern, model)
    ]
    _join_classifiers(found)
    restoring.check_places(path, mapped & found.keys(), found, weights, model)
    found = {
        name: restoring.as_matrix(
            value, weights.get(name.removesuffix(AVERAGE))
        )
        for name, value in found.items()
    }
    notes += _reorder_rows(path, found, weights, data_format)
    return Translated(found, notes)


def _join_classifiers(found):
    """Makes one classifier of two, one behind the other, with no ReLU.

    tf_cnn_benchmarks put one of its own behind that of MobileNet.
    """
    for end in ('', AVERAGE):
        second = [f'dense0/{role}{end}' for role in ('kernel', 'bias')]
        first = [f'logits/{role}{end}' for role in ('kernel', 'bias')]
        if not all(name in found for name in first + second):
            continue
        kernel, bias = (found.pop(name) for name in second)
        found[first[0]] = found[first[0]].reshape(-1, kernel.shape[0]) @ kernel
        found[first[1]] = found[first[1]] @ kernel + bias


def _reorder_rows(path, found, weights, data_format):
    """Rows of the first dense layer, from channels first to channels last."""
    convs = [name for name in weights if len(weights[name]) == 4]
    dense = [name for name in weights if len(weights[name]) == 2]
    if not convs or not dense:
        return []
    name, channels = dense[0], weights[convs[-1]][-1]
    rows, columns = weights[name]
    side = round((rows / channels) ** 0.5)
    if side < 2 or side * side * channels != rows:
        return []
    if data_format == 'NCHW':
        for one in (name, name + AVERAGE):
            if one in found and found[one].shape == (rows, columns):
                found[one] = (
                    found[one]
                    .reshape(channels, side, side, columns)
                    .transpose(1, 2, 0, 3)
                    .reshape(rows, columns)
                )
    other = {'NCHW': 'NHWC', 'NHWC': 'NCHW'}[data_format]
    return [
        f'{name} of {path} is read as trained in {data_format}; '
        f'--ckpt_data_format={other} reads it as the other'
    ]


def drop_unused_class(
    values: dict[str, np.ndarray], names: Sequence[str], num_classes: int
) -> str | None:
    """Takes out the class that the originals counted and never used.

    Args:
        values: array by our name; changed.
        names: weights whose last axis counts one class too many.
        num_classes: classes here.

    Returns:
        What was done, for the user; None where nothing was.
    """
    if any(values[name].shape[-1] != num_classes + 1 for name in names):
        return None
    # ImageNet's labels began at 1 there; CIFAR's began at 0.
    first = num_classes >= 1000
    for name in [one + end for one in names for end in ('', AVERAGE)]:
        if name in values:
            values[name] = (
                values[name][..., 1:] if first else values[name][..., :-1]
            )
    return (
        f'class {0 if first else num_classes} of the {num_classes + 1} of the '
        f'original, which no label had, is left out of '
        f'{restoring.shown(names)}'
    )
