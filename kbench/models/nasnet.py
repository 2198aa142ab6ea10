"""NASNet-A: mobile, large, and for CIFAR."""

import dataclasses
import functools

from kbench.models import layers
from kbench.models.spec import ModelSpec

# Figure 4 of the paper. A cell's states are its input (0), the cell before
# (1) and the sums of the rows below (2, 3, ...); each row is the left and
# the right summand as (state, operation): ('separable', window), ('max',),
# ('avg',), or () for the state itself.
_NORMAL = (
    ((0, ('separable', 5)), (1, ('separable', 3))),
    ((1, ('separable', 5)), (1, ('separable', 3))),
    ((0, ('avg',)), (1, ())),
    ((1, ('avg',)), (1, ('avg',))),
    ((0, ('separable', 3)), (0, ())),
)
_NORMAL_OUTPUTS = (1, 2, 3, 4, 5, 6)
_REDUCTION = (
    ((0, ('separable', 5)), (1, ('separable', 7))),
    ((0, ('max',)), (1, ('separable', 7))),
    ((0, ('avg',)), (1, ('separable', 5))),
    ((3, ()), (2, ('avg',))),
    ((2, ('separable', 3)), (0, ('max',))),
)
_REDUCTION_OUTPUTS = (3, 4, 5, 6)


@dataclasses.dataclass(frozen=True)
class _Network:
    """One NASNet-A.

    Attributes:
        cells: normal cells, in three stages.
        filters: of the first stage's cells.
        stem_filters: of the first convolution.
        imagenet: whether two reduction cells stand in front.
        skip: whether the cell behind a reduction sees the cell before the
            reduction's input as the previous one.
        drop_path: share of paths dropped in the last cell; earlier cells
            drop proportionally less.
        dropout: share of the last features that training drops.
        momentum, epsilon: of the batch norms.
    """

    cells: int
    filters: int
    stem_filters: int
    imagenet: bool = True
    skip: bool = False
    drop_path: float = 0.0
    dropout: float = 0.5
    momentum: float = 0.9997
    epsilon: float = 1e-3

    @property
    def norm(self):
        """Options of every batch norm."""
        return {'momentum': self.momentum, 'epsilon': self.epsilon}


class _Cell:
    """Builds one cell; the states it keeps are tensors."""

    def __init__(self, network, name, filters, strides, drop_rate):
        self._norm = network.norm
        self._name = name
        self._filters = filters
        self._strides = strides
        self._drop_rate = drop_rate
        self._derived = {}

    def __call__(self, x, previous, rows, outputs):
        """Returns the concatenated outputs of the cell's rows."""
        previous = x if previous is None else self._adjust(previous, x)
        first = self._conv(self._relu(x, 'input'), 'input')
        states = [first, previous]
        for index, pair in enumerate(rows, 1):
            summands = [
                self._operate(states[state], operation, state, f'{index}{side}')
                for side, (state, operation) in zip('lr', pair, strict=True)
            ]
            states.append(
                layers.add(summands, name=f'{self._name}_{index}_add')
            )
        ends = []
        for state in outputs:
            end = states[state]
            if layers.num_channels(end) != self._filters:
                end = self._conv(end, f'output{state}')
            ends.append(end)
        return layers.concat(ends, name=self._name)

    def _relu(self, x, key):
        """The ReLU of a state, made once for all that read it."""
        if ('relu', key) not in self._derived:
            self._derived['relu', key] = layers.activation(
                x, 'relu', name=f'{self._name}_{key}_relu'
            )
        return self._derived['relu', key]

    def _padded(self, x, key):
        """A state with the zeros its strided pools count."""
        if ('pad', key) not in self._derived:
            self._derived['pad', key] = layers.pad_for_stride_2(
                x, name=f'{self._name}_{key}_pad'
            )
        return self._derived['pad', key]

    def _conv(self, x, name, strides=1):
        return layers.conv_bn(
            x,
            self._filters,
            1,
            strides,
            norm=self._norm,
            activation=None,
            name=f'{self._name}_{name}',
        )

    def _adjust(self, previous, x):
        """Brings the previous cell's output to this cell's size."""
        name = f'{self._name}_adjust'
        if layers.spatial_size(previous) != layers.spatial_size(x):
            y = self._relu(previous, 'previous')
            halves = [
                layers.conv(
                    layers.subsample(y, 2, shift=shift, name=f'{name}_{shift}'),
                    self._filters // 2,
                    1,
                    name=f'{name}_{shift}_conv',
                )
                for shift in (0, 1)
            ]
            y = layers.concat(halves, name=f'{name}_concat')
            return layers.batch_norm(y, name=f'{name}_bn', **self._norm)
        if layers.num_channels(previous) != self._filters:
            return self._conv(self._relu(previous, 'previous'), 'adjust')
        return previous

    def _operate(self, x, operation, state, name):
        # Only the two inputs of a cell are strided over.
        strides = self._strides if state < 2 else 1
        if not operation:
            if layers.num_channels(x) != self._filters:
                x = self._conv(self._relu(x, f'state{state}'), name, strides)
            return x
        if operation[0] == 'separable':
            y = self._separable(x, operation[1], strides, state, name)
        else:
            y = self._pool(x, operation[0], strides, state, name)
        if self._drop_rate:
            y = layers.dropout(
                y,
                self._drop_rate,
                whole_images=True,
                name=f'{self._name}_{name}_drop',
            )
        return y

    def _separable(self, x, window, strides, state, name):
        """Twice: ReLU, depthwise and 1x1 convolution, batch norm."""
        y = self._relu(x, f'state{state}')
        for index, activation in ((1, 'relu'), (2, None)):
            layer_name = f'{self._name}_{name}_{index}'
            y = layers.depthwise_conv(
                y,
                window,
                strides if index == 1 else 1,
                name=f'{layer_name}_depthwise',
            )
            y = layers.conv_bn(
                y,
                self._filters,
                1,
                norm=self._norm,
                activation=activation,
                name=layer_name,
            )
        return y

    def _pool(self, x, kind, strides, state, name):
        pool = layers.max_pool if kind == 'max' else layers.avg_pool
        pool_name = f'{self._name}_{name}_pool'
        if strides == 1:
            y = pool(x, 3, 1, 'same', name=pool_name)
        else:
            y = pool(self._padded(x, f'state{state}'), 3, 2, name=pool_name)
        if layers.num_channels(y) != self._filters:
            y = self._conv(y, name)
        return y


class _Builder:
    """Adds cells and remembers the outputs that later cells look back at."""

    def __init__(self, network, stem):
        self._network = network
        self.outputs = [None, stem]
        self._total = network.cells + (4 if network.imagenet else 2)

    def add(self, name, scale, reduction, previous):
        """Adds a cell of `scale` times the network's filters."""
        network = self._network
        ratio = (len(self.outputs) - 1) / self._total
        cell = _Cell(
            network,
            name,
            int(network.filters * scale),
            2 if reduction else 1,
            network.drop_path * ratio,
        )
        rows = (
            (_REDUCTION, _REDUCTION_OUTPUTS)
            if reduction
            else (_NORMAL, _NORMAL_OUTPUTS)
        )
        self.outputs.append(cell(self.outputs[-1], previous, *rows))
        return self.outputs[-1]


def build(images, num_classes, network):
    """Three stages of normal cells, a reduction cell before each but one.

    Weights are He's normal ones. The auxiliary classifier stands behind
    the last cell before the second reduction.
    """
    stem = layers.conv_bn(
        images,
        network.stem_filters,
        3,
        2 if network.imagenet else 1,
        'valid' if network.imagenet else 'same',
        norm=network.norm,
        activation=None,
        name='stem',
    )
    builder = _Builder(network, stem)
    outputs = builder.outputs
    if network.imagenet:
        for index, scale in ((1, 0.25), (2, 0.5)):
            builder.add(f'stem_cell{index}', scale, True, outputs[-2])
    a_stage = network.cells // 3
    for index in range(network.cells):
        stage = index // a_stage
        previous = outputs[-2]
        if stage and index % a_stage == 0:
            builder.add(f'reduction{stage}', 2**stage, True, outputs[-2])
            if not network.skip:
                previous = outputs[-2]
        x = builder.add(f'cell{index + 1}', 2**stage, False, previous)
        if index == 2 * a_stage - 1:
            auxiliary = layers.activation(x, 'relu', name='aux_relu')
    x = layers.activation(x, 'relu', name='last_relu')
    x = layers.global_mean(x)
    if network.dropout:
        x = layers.dropout(x, network.dropout, name='dropout')
    aux_logits = layers.auxiliary_logits(
        auxiliary, num_classes, norm=network.norm
    )
    return layers.logits(x, num_classes), [aux_logits]


_PAPER = 'Zoph et al. arXiv 1707.07012'
_MOBILE = _Network(cells=12, filters=44, stem_filters=32)
_LARGE = _Network(
    cells=18, filters=168, stem_filters=96, skip=True, drop_path=0.3
)
_CIFAR = _Network(
    cells=18,
    filters=32,
    stem_filters=96,
    imagenet=False,
    drop_path=0.4,
    dropout=0.0,
    momentum=0.9,
    epsilon=1e-5,
)

SPECS = (
    ModelSpec(
        'nasnet',
        'imagenet',
        functools.partial(build, network=_MOBILE),
        image_size=224,
        batch_size=32,
        learning_rate=0.005,
        parameters=5_289_978,
        macs=562_582_816 + 1_056_000,
        top_1=74.0,
        top_5=91.6,
        source=f'{_PAPER}, table 3 (4 @ 1056); slim',
        aliases=('nasnet_v1_small',),
    ),
    ModelSpec(
        'nasnetlarge',
        'imagenet',
        functools.partial(build, network=_LARGE),
        image_size=331,
        batch_size=16,
        learning_rate=0.005,
        parameters=88_753_150,
        macs=23_779_382_658 + 4_032_000,
        top_1=82.7,
        top_5=96.2,
        source=f'{_PAPER}, table 2 (6 @ 4032); slim',
        aliases=('nasnet_v1_large',),
    ),
    ModelSpec(
        'nasnet',
        'cifar10',
        functools.partial(build, network=_CIFAR),
        image_size=32,
        batch_size=32,
        learning_rate=0.025,
        parameters=3_346_538,
        macs=544_325_632 + 7_680,
        source=f'{_PAPER}, table 1 (6 @ 768)',
    ),
)
