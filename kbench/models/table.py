"""The model table as text."""

import dataclasses
import json

from kbench.models.spec import ModelSpec

_HEAD = (
    'model',
    'dataset',
    'pixels',
    'batch',
    'learning rate',
    'loss scale',
    'parameters',
    'multiply-adds',
    'top-1',
    'top-5',
    'source',
)
_LEFT_ALIGNED = ('model', 'dataset', 'learning rate', 'source')


def _json_row(spec):
    return {
        field.name: getattr(spec, field.name)
        for field in dataclasses.fields(spec)
        if field.name != 'builder'
    }


def _row(spec):
    rule = f'{spec.learning_rate:g}'
    if spec.schedule != 'constant':
        rule += f', {spec.schedule}'
    return (
        ' = '.join((spec.name, *spec.aliases)),
        spec.dataset,
        str(spec.image_size),
        str(spec.batch_size),
        rule,
        f'{spec.loss_scale:g}',
        f'{spec.parameters:,}',
        f'{spec.macs:,}',
        '-' if spec.top_1 is None else f'{spec.top_1:.1f}',
        '-' if spec.top_5 is None else f'{spec.top_5:.1f}',
        spec.source,
    )


def format_table(specs: list[ModelSpec], as_json: bool = False) -> str:
    """Writes rows of the model table, for people or as JSON.

    Args:
        specs: the rows.
        as_json: a JSON list with one object a row, whose keys are the
            attributes of `ModelSpec`; otherwise aligned columns under a
            line of headings.

    Returns:
        The text, without a line break at its end.
    """
    if as_json:
        return json.dumps([_json_row(spec) for spec in specs], indent=2)
    rows = [_HEAD, *(_row(spec) for spec in specs)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if head in _LEFT_ALIGNED else cell.rjust(width)
            for head, cell, width in zip(_HEAD, row, widths, strict=True)
        ]
        lines.append('  '.join(cells).rstrip())
    return '\n'.join(lines)
