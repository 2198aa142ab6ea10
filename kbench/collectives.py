"""all_reduce_spec: which algorithm adds which gradients over the devices.

Grammar: `alg[#shards][/alg[#shards]][:limit:spec]`, where a limit is a number
of bytes such as `32k` or `4M`: tensors up to it go the first way, larger ones
the next. The names are those of tf_cnn_benchmarks; what each becomes on
TensorFlow 2 is in `ALGORITHMS`.
"""

import dataclasses
import re
from collections.abc import Sequence

import tensorflow as tf

from kbench import errors

NCCL, HIERARCHICAL, ONE_CPU, ONE_GPU, RING, AUTO = (
    'NcclAllReduce',
    'HierarchicalCopyAllReduce',
    'ReductionToOneDevice on the CPU',
    'ReductionToOneDevice on a GPU',
    'collective RING',
    'collective AUTO',
)

# Name to what adds the gradients in one process, and between processes.
ALGORITHMS = {
    'nccl': (NCCL, 'NCCL'),
    'nccl/xring': (NCCL, 'NCCL'),
    'nccl/rechd': (NCCL, 'NCCL'),
    'nccl/pscpu': (NCCL, 'NCCL'),
    'xring': (HIERARCHICAL, 'RING'),
    'rechd': (HIERARCHICAL, 'RING'),
    'hierarchical_copy': (HIERARCHICAL, None),
    'pscpu': (ONE_CPU, None),
    'psgpu': (ONE_GPU, None),
    'pscpu/pscpu': (ONE_CPU, None),
    'collective': (AUTO, 'AUTO'),
}
_LIMIT = re.compile(r'(\d+)([kKmM]?)$')
_PART = re.compile(r'([a-z_]+)(?:#(\d+))?$')
_UNITS = {'': 1, 'k': 1 << 10, 'm': 1 << 20}


class SpecError(errors.UserError):
    """A spec that is no spec or cannot run here; its text is one line."""


@dataclasses.dataclass(frozen=True)
class Range:
    """How tensors up to a size are added.

    Attributes:
        algorithm: a key of `ALGORITHMS`.
        shards: into how many parts each tensor is cut.
        limit: bytes of the largest tensor; None for no limit.
    """

    algorithm: str
    shards: int = 1
    limit: int | None = None


def parse(spec: str) -> tuple[Range, ...]:
    """Splits a spec into its ranges, the smallest limit first.

    Raises:
        SpecError: not of the grammar, or limits that do not rise.
    """
    parts = spec.split(':')
    if len(parts) % 2 == 0 or not all(parts):
        raise _error(spec, 'it takes alg[#shards][:limit:spec]')
    limits = [_limit(spec, text) for text in parts[1::2]]
    if limits != sorted(set(limits)):
        raise _error(spec, 'its limits must rise')
    return tuple(
        Range(*_algorithm(spec, text), limit)
        for text, limit in zip(parts[0::2], [*limits, None], strict=True)
    )


def _error(spec: str, why: str) -> SpecError:
    return SpecError(f'--all_reduce_spec={spec!r} is not legal: {why}')


def parse_size(text: str) -> int | None:
    """Bytes of a size such as `32k` or `4M`; None where it is none."""
    match = _LIMIT.match(text)
    if match is None or int(match.group(1)) == 0:
        return None
    return int(match.group(1)) * _UNITS[match.group(2).lower()]


def _limit(spec: str, text: str) -> int:
    size = parse_size(text)
    if size is None:
        raise _error(spec, f'{text!r} is no limit such as 32k or 4M')
    return size


def _algorithm(spec: str, text: str) -> tuple[str, int]:
    matches = [_PART.match(part) for part in text.split('/')]
    if not all(matches):
        raise _error(spec, f'{text!r} is no alg[#shards][/alg[#shards]]')
    name = '/'.join(match.group(1) for match in matches)
    if name not in ALGORITHMS:
        known = ', '.join(ALGORITHMS)
        raise _error(spec, f'{name!r} is none of {known}')
    shards = max(int(match.group(2) or 1) for match in matches)
    if shards < 1:
        raise _error(spec, f'{text!r} asks for no shard')
    return name, shards


class BySize(tf.distribute.CrossDeviceOps):
    """Sends every tensor to the operations for its size.

    Args:
        rows: (bytes of the largest tensor or None, shards, operations),
            the smallest limit first.
    """

    def __init__(self, rows: Sequence[tuple]):
        super().__init__()
        self._rows = list(rows)

    def _row(self, per_replica):
        value = per_replica.values[0]
        size = value.shape.num_elements() * value.dtype.size
        for limit, shards, operations in self._rows:
            if limit is None or size <= limit:
                return shards, operations
        raise AssertionError('the last range has no limit')

    def reduce_implementation(
        self, reduce_op, per_replica_value, destinations, options
    ):
        """One tensor, whole."""
        _, operations = self._row(per_replica_value)
        return operations.reduce_implementation(
            reduce_op, per_replica_value, destinations, options
        )

    def broadcast_implementation(self, tensor, destinations):
        """As the operations for large tensors do it."""
        return self._rows[-1][2].broadcast_implementation(tensor, destinations)

    def batch_reduce_implementation(
        self, reduce_op, value_destination_pairs, options
    ):
        """All tensors of a size together."""
        pairs = list(value_destination_pairs)
        groups = {}
        for place, (value, _) in enumerate(pairs):
            shards, operations = self._row(value)
            groups.setdefault((shards, id(operations)), (operations, []))[
                1
            ].append(place)
        done = [None] * len(pairs)
        for (shards, _), (operations, places) in groups.items():
            found = _reduce_sharded(
                operations,
                reduce_op,
                [pairs[place] for place in places],
                options,
                shards,
            )
            for place, value in zip(places, found, strict=True):
                done[place] = value
        return done


def _map(function, per_replica):
    values = []
    for value in per_replica.values:
        with tf.device(value.device):
            values.append(function(value))
    return type(per_replica)(values)


def _reduce_sharded(operations, reduce_op, pairs, options, shards):
    if shards == 1:
        return operations.batch_reduce_implementation(reduce_op, pairs, options)
    cut = []
    for value, destination in pairs:
        size = value.values[0].shape.num_elements()
        parts = min(shards, max(1, size))
        sizes = [size // parts + (i < size % parts) for i in range(parts)]
        flat = _map(lambda one: tf.reshape(one, [-1]), value)
        starts = [sum(sizes[:i]) for i in range(parts)]
        cut.append(
            [
                (
                    _map(lambda v, a=a, n=n: tf.slice(v, [a], [n]), flat),
                    destination,
                )
                for a, n in zip(starts, sizes, strict=True)
            ]
        )
    reduced = iter(
        operations.batch_reduce_implementation(
            reduce_op, [part for parts in cut for part in parts], options
        )
    )
    done = []
    for (value, _), parts in zip(pairs, cut, strict=True):
        found = [next(reduced) for _ in parts]
        shape = value.values[0].shape
        whole = []
        for index in range(len(found[0].values)):
            with tf.device(found[0].values[index].device):
                pieces = [one.values[index] for one in found]
                whole.append(tf.reshape(tf.concat(pieces, 0), shape))
        done.append(type(found[0])(whole))
    return done


def _create(kind: str, devices: Sequence[str]) -> tf.distribute.CrossDeviceOps:
    if kind == NCCL:
        return tf.distribute.NcclAllReduce()
    if kind == HIERARCHICAL:
        return tf.distribute.HierarchicalCopyAllReduce()
    place = '/cpu:0' if kind == ONE_CPU else devices[0]
    return tf.distribute.ReductionToOneDevice(reduce_to_device=place)


def default(devices: Sequence[str]) -> str:
    """The spec that is used where none is set, in one process."""
    return 'nccl' if 'gpu' in devices[0].lower() else 'pscpu'


def local_kind(algorithm: str, on_gpu: bool) -> str:
    """What an algorithm becomes in one process."""
    kind = ALGORITHMS[algorithm][0]
    if kind == AUTO:
        return NCCL if on_gpu else ONE_CPU
    return kind


def create(
    spec: str | None, devices: Sequence[str]
) -> tf.distribute.CrossDeviceOps:
    """Makes what adds gradients over the devices of one process.

    Args:
        spec: all_reduce_spec, or None for what suits the devices.
        devices: such as `/gpu:0`.

    Raises:
        SpecError: it is not legal, or cannot run on these devices.
    """
    spec = spec or default(devices)
    ranges = parse(spec)
    on_gpu = 'gpu' in devices[0].lower()
    for one in ranges:
        kind = ALGORITHMS[one.algorithm][0]
        if kind in (NCCL, ONE_GPU) and not on_gpu:
            legal = [
                name
                for name, (what, _) in ALGORITHMS.items()
                if what not in (NCCL, ONE_GPU)
            ]
            raise SpecError(
                f'--all_reduce_spec={spec!r} needs GPUs, for '
                f'{one.algorithm}: legal on CPUs are {", ".join(legal)}'
            )
        # With three devices its two groups of one leave the third out.
        if kind == HIERARCHICAL and len(devices) > 1 and len(devices) % 2:
            raise SpecError(
                f'--all_reduce_spec={spec!r} needs an even number of devices, '
                f'for {one.algorithm}: here are {len(devices)}'
            )
    made = {}
    for one in ranges:
        kind = local_kind(one.algorithm, on_gpu)
        made[one.algorithm] = _create(kind, devices)
    if len(ranges) == 1 and ranges[0].shards == 1:
        return made[ranges[0].algorithm]
    return BySize(
        [(one.limit, one.shards, made[one.algorithm]) for one in ranges]
    )


def implementation(spec: str | None, on_gpu: bool) -> str:
    """The collective implementation between processes: AUTO, RING or NCCL.

    Raises:
        SpecError: it is not legal, or is for one process.
    """
    if spec is None:
        return 'AUTO' if on_gpu else 'RING'
    kinds = set()
    for one in parse(spec):
        kind = ALGORITHMS[one.algorithm][1]
        if kind is None or one.shards > 1:
            legal = [n for n, (_, kind) in ALGORITHMS.items() if kind]
            raise SpecError(
                f'--all_reduce_spec={spec!r} does not join processes: legal '
                f'there are {", ".join(legal)}, without shards'
            )
        if kind == 'NCCL' and not on_gpu:
            raise SpecError(
                f'--all_reduce_spec={spec!r} needs GPUs, for {one.algorithm}'
            )
        kinds.add(kind)
    if len(kinds) > 1:
        raise SpecError(
            f'--all_reduce_spec={spec!r}: all sizes go one way between '
            f'processes, and these are {", ".join(sorted(kinds))}'
        )
    return kinds.pop()
