"""Weights in files that Keras wrote: `.keras`, `.weights.h5` and `.h5`."""

import io
import re
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import h5py
import numpy as np

from kbench.checkpoints import files, restoring

# What a file holds besides: states of optimizers, metrics, random numbers.
_NO_WEIGHTS = {'optimizer', 'metrics', 'seed_generator'}
ENDS = ('.keras', '.h5')
Layers = dict[str, list[np.ndarray]]


def load(path: str) -> Layers:
    """Reads the arrays of every layer, by the layer's name.

    Args:
        path: a file of `model.save`, of `model.save_weights`, or of an older
            Keras such as the ones that keras.applications downloads.

    Raises:
        CheckpointError: absent, damaged, or without names of layers.
    """
    try:
        if not path.endswith('.keras'):
            with h5py.File(path, 'r') as file:
                return _layers(file, path)
        with (
            zipfile.ZipFile(path) as archive,
            archive.open('model.weights.h5') as member,
            h5py.File(io.BytesIO(member.read()), 'r') as file,
        ):
            return _layers(file, path)
    except (OSError, KeyError, RuntimeError, zipfile.BadZipFile) as error:
        text = ' '.join(str(error).split()) or type(error).__name__
        raise files.CheckpointError(f'{path} cannot be read: {text}') from None


def _layers(file, path) -> Layers:
    root = file.get('model_weights', file)
    if 'layer_names' in root.attrs:
        return _old_layers(root)
    found = {}

    def visit(name, group):
        parts = name.split('/')
        if parts[-1] != 'vars' or _NO_WEIGHTS & set(parts):
            return
        if not isinstance(group, h5py.Group) or not len(group):
            return
        if 'name' not in group.attrs:
            raise files.CheckpointError(
                f'{path} does not name its layers, as Keras before 3.6 did '
                'not: load it in Keras and save it again'
            )
        keys = sorted(group, key=int)
        found[_text(group.attrs['name'])] = [
            np.asarray(group[key]) for key in keys
        ]

    file.visititems(visit)
    return found


def _old_layers(root) -> Layers:
    found = {}
    for layer in map(_text, root.attrs['layer_names']):
        names = [_text(name) for name in root[layer].attrs['weight_names']]
        if names:
            found[layer] = [np.asarray(root[layer][name]) for name in names]
    return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _vgg(name):
    name = name.replace('fc1', 'dense6').replace('fc2', 'dense7')
    return re.sub(r'block(\d)_conv(\d)', r'conv\1_\2', name)


def _resnet(name):
    match = re.fullmatch(r'conv(\d)_block(\d+)_(\w+?)_(conv|bn)', name)
    if match is None:
        fixed = {
            'conv1_conv': 'stem_conv',
            'conv1_bn': 'stem_bn',
            'post_bn': 'post',
        }
        return fixed.get(name, name)
    stage, block, part, kind = match.groups()
    prefix = f'stage{int(stage) - 1}_block{block}'
    if part == 'preact':
        return f'{prefix}_pre'
    return f'{prefix}_{"shortcut" if part == "0" else part}_{kind}'


def _mobilenet_v1(name):
    match = re.fullmatch(r'conv_(dw|pw)_(\d+)(_bn)?', name)
    if match is None:
        fixed = {'conv1': 'conv1_conv', 'conv_preds': 'logits'}
        return fixed.get(name, name)
    part, index, norm = match.groups()
    depthwise = '_depthwise' if part == 'dw' else ''
    return f'conv{int(index) + 1}{depthwise}{norm or "_conv"}'


# Stage and block of the running block number of MobileNet v2, table 2.
MOBILENET_V2_BLOCKS = [
    (stage, block)
    for stage, blocks in enumerate((1, 2, 3, 4, 3, 3, 1), 1)
    for block in range(1, blocks + 1)
]


def _mobilenet_v2(name):
    fixed = {
        'Conv1': 'stem_conv',
        'bn_Conv1': 'stem_bn',
        'Conv_1': 'last_conv',
        'Conv_1_bn': 'last_bn',
    }
    if name in fixed:
        return fixed[name]
    name = name.replace('expanded_conv', 'block_0')
    match = re.fullmatch(r'block_(\d+)_([a-z]+)(_BN)?', name)
    if match is None or int(match[1]) >= len(MOBILENET_V2_BLOCKS):
        return name
    stage, block = MOBILENET_V2_BLOCKS[int(match[1])]
    return (
        f'stage{stage}_block{block}_{match[2]}_{"bn" if match[3] else "conv"}'
    )


# Models of kbench, and what the layers of keras.applications are there.
_APPLICATIONS = (
    (r'vgg(16|19)', _vgg),
    (r'resnet(_v2_)?(50|101|152)(_299)?', _resnet),
    (r'mobilenet_v1_.*', _mobilenet_v1),
    (r'mobilenet(_v2_d1|_v2_d14)?', _mobilenet_v2),
)


# Whose published weights were trained on other pixels than kbench gives.
_OTHER_PIXELS = r'(keras:)?(vgg(16|19)|resnet(50|101|152))'


def note(path: str, model: str) -> str | None:
    """What the user should know of weights of keras.applications."""
    if not re.fullmatch(_OTHER_PIXELS, model.lower()):
        return None
    return (
        f'if {path} holds the ImageNet weights of keras.applications: they '
        'were trained on BGR pixels less their means, and kbench gives RGB '
        'in [-1, 1], so train on from them'
    )


def to_names(
    path: str,
    layers: Layers,
    weights: Mapping[str, Sequence[int]],
    model: str,
) -> dict[str, np.ndarray]:
    """Names the arrays of a file as the weights of a model.

    Args:
        path: the file, for messages.
        layers: from `load`.
        weights: shape by name, in the order of the model.
        model: name of the model in kbench's table.

    Returns:
        Array by name. Where Keras's convolution has a bias in front of a
        batch norm and kbench's has none, the moving mean has taken it.

    Raises:
        CheckpointError: there are layers or weights that the model lacks.
    """
    ours: dict[str, list[str]] = {}
    for name in weights:
        ours.setdefault(name.rpartition('/')[0], []).append(name)
    if not set(ours) <= set(layers):
        layers = {
            layer_name(name, model): arrays for name, arrays in layers.items()
        }
    if not set(ours) & set(layers):
        raise files.CheckpointError(
            f'{path} has other layers than model {model}: '
            f'{restoring.shown(layers)} there, {restoring.shown(ours)} here; '
            'weights of keras.applications fit --model=keras:<Name>'
        )
    found, carried = {}, {}
    for layer, arrays in layers.items():
        names = list(ours.get(layer, ()))
        names += [
            f'{layer}/{index}' for index in range(len(names), len(arrays))
        ]
        named = dict(zip(names, arrays, strict=False))
        mean = layer.removesuffix('_conv') + '_bn/moving_mean'
        if layer.endswith('_conv') and mean in weights and len(arrays) == 2:
            carried[mean] = named.pop(names[1])
        found |= named
    for mean, bias in carried.items():
        if mean in found:
            found[mean] = found[mean] - bias
    restoring.check_places(path, found, found, weights, model)
    return {
        name: restoring.as_matrix(array, weights.get(name))
        for name, array in found.items()
    }


def layer_name(name: str, model: str) -> str:
    """What a layer of keras.applications is here.

    Args:
        name: of the layer there.
        model: name of the same model in kbench's table.

    Returns:
        The name here; the same where none is known.
    """
    for pattern, rename in _APPLICATIONS:
        if re.fullmatch(pattern, model):
            return 'logits' if name == 'predictions' else rename(name)
    return name
