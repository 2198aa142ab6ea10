"""The command line: absl flags made from the table of parameters."""

import logging
import textwrap
from collections.abc import Sequence
from typing import Any

from absl import flags

from kbench import params as params_lib
from kbench.params import checks, table

FLAGS = flags.FLAGS

_DEFINE = {
    'string': flags.DEFINE_string,
    'int': flags.DEFINE_integer,
    'float': flags.DEFINE_float,
    'bool': flags.DEFINE_boolean,
}
_MODULE = 'kbench'


def define_flags() -> None:
    """Defines one absl flag per parameter; a second call does nothing."""
    if 'variable_update' in FLAGS:
        return
    for row in table.TABLE.values():
        # Ranges are checked by `make_params`, whose message says more.
        _DEFINE[row.type](row.name, row.default, row.help, module_name=_MODULE)
        if row.alias:
            flags.DEFINE_alias(row.alias, row.name, module_name=_MODULE)


def parse(argv: Sequence[str]) -> list[str]:
    """Parses a command line, program name first.

    Returns:
        The arguments that are no flags.

    Raises:
        ParamsError: unknown flag or a value of the wrong type.
    """
    define_flags()
    # The one string that may stand without a value.
    argv = [
        '--list_models=*' if one in ('--list_models', '-list_models') else one
        for one in argv
    ]
    try:
        return FLAGS(argv)[1:]
    except flags.UnrecognizedFlagError as error:
        raise checks.unknown(error.flagname) from None
    except flags.IllegalFlagValueError as error:
        raise _illegal_value(str(error)) from None
    except flags.Error as error:
        # absl puts that before what it says of a --flagfile.
        text = str(error).removeprefix('ERROR:: ')
        raise params_lib.ParamsError(' '.join(text.split())) from None


def _illegal_value(text: str) -> params_lib.ParamsError:
    """Says what would be legal: absl only says that a value is not."""
    assignment = text.removeprefix('flag --').partition(':')[0]
    name, _, value = assignment.partition('=')
    row = table.TABLE.get(table.ALIASES.get(name, name))
    if row is None:
        return params_lib.ParamsError(' '.join(text.split()))
    return params_lib.ParamsError(
        f'{checks.shown(name)}={value!r} is not legal: it takes '
        f'{checks.legal_text(row)}'
    )


def explicit_values() -> dict[str, Any]:
    """The parameters that the command line set, by name."""
    values = {
        name: FLAGS[name].value for name in table.TABLE if FLAGS[name].present
    }
    # `present` of an alias is its own; its value is the canonical flag's.
    for alias, name in table.ALIASES.items():
        if FLAGS[alias].present:
            values[name] = FLAGS[name].value
    return values


def make_params_from_flags() -> params_lib.Params:
    """Makes the parameters from the parsed absl flags.

    An evaluation takes what it is not told from the training's
    `parameters.json`.

    Raises:
        ParamsError: as `make_params`.
    """
    values = explicit_values()
    params_lib.await_training(values, logging.getLogger('kbench').info)
    return params_lib.make_params(**params_lib.inherit_for_eval(values))


def help_text(program: str) -> str:
    """The text of `--help`: every parameter with its default and meaning."""
    lines = [
        f'usage: {program} [--parameter=value ...]',
        f'       {program} <command> ...',
        '',
        'Benchmark, train and evaluate convolutional networks.',
    ]
    group = None
    for row in table.TABLE.values():
        if row.group != group:
            group = row.group
            lines += ['', f'{group}:']
        kind = '' if row.kind == table.ACTIVE else f', {row.kind}'
        names = checks.shown(row.name)
        if row.alias:
            names += f', {checks.shown(row.alias)}'
        lines.append(f'  {names} ({row.type}, default {row.default!r}{kind})')
        text = row.help
        if row.choices:
            text += f' One of: {", ".join(map(repr, row.choices))}.'
        lines += textwrap.wrap(
            text, 78, initial_indent='      ', subsequent_indent='      '
        )
    return '\n'.join(lines)
