"""The rings of the house: an import goes only to a lower ring."""

import ast
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / 'kbench'

RINGS = {
    -1: {'errors', 'files'},
    0: {'params', 'throughput'},
    # What strategies are made of, each from those before it.
    0.1: {'packing', 'shards'},
    0.2: {'cluster', 'collectives', 'copies', 'pinning'},
    0.4: {'control', 'replicas'},
    0.5: {'scheduled_steps'},
    0.6: {'peers', 'scheduled'},
    1: {
        'augment',
        'averages',
        'bad_images',
        'checkpoints',
        'datasets',
        'flags',
        'gradients',
        'journal',
        'losses',
        'machine',
        'metrics',
        'models',
        'precision',
        'preprocessing',
        'runtime',
        'schedules',
        'strategies',
        'summaries',
        'traces',
    },
    2: {'export', 'input', 'optimizers', 'reporting', 'results'},
    3: {
        'all_reduce_benchmark',
        'evaluate',
        'input_benchmark',
        'loop',
        'serve',
        'train',
    },
    # Which part of a cluster this process is.
    3.5: {'job'},
    # What a run leaves behind, whatever ends it.
    3.6: {'record'},
    4: {'benchmark'},
    5: {'commands'},
    6: {'__init__', '__main__'},
}
RING_OF = {name: ring for ring, names in RINGS.items() for name in names}
FILES = sorted(PACKAGE.rglob('*.py'))


def _module(path):
    return path.relative_to(PACKAGE).with_suffix('').parts[0]


def _imports(path):
    """Names of kbench's own modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                package, _, rest = alias.name.partition('.')
                if package == 'kbench':
                    yield rest.partition('.')[0] or '__init__'
        elif isinstance(node, ast.ImportFrom) and node.module:
            package, _, rest = node.module.partition('.')
            if package != 'kbench':
                continue
            if rest:
                yield rest.partition('.')[0]
            else:
                yield from (alias.name for alias in node.names)


@pytest.mark.parametrize('path', FILES, ids=lambda p: str(p.name))
def test_imports_go_to_lower_rings(path):
    module = _module(path)
    assert module in RING_OF, f'{module} has no ring yet'
    for imported in _imports(path):
        if imported == module:
            continue
        # `kbench.__init__` gives names such as UserError to the shell.
        target = RING_OF.get(imported, RING_OF['__init__'])
        assert target < RING_OF[module] or module in RINGS[6], (
            f'{module} (ring {RING_OF[module]}) imports {imported} '
            f'(ring {target})'
        )


@pytest.mark.parametrize('path', FILES, ids=lambda p: str(p.name))
def test_sizes(path):
    text = path.read_text()
    if path.name != 'table.py':
        assert text.count('\n') <= 400
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, node.name


def test_only_reporting_prints():
    printing = {
        path.name
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Name) and node.id == 'print'
    }
    assert printing == {'reporting.py'}


def test_only_strategies_knows_the_modes():
    modes = {'parameter_server', 'replicated', 'independent'}
    knowing = {
        path.relative_to(PACKAGE).parts[0]
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and node.value in modes
    }
    # The table of parameters lists them as legal values.
    assert knowing == {'strategies.py', 'params'}


def test_importing_kbench_imports_no_tensorflow():
    code = (
        'import sys, kbench, kbench.__main__, kbench.flags\n'
        'kbench.define_flags()\n'
        'kbench.models.get_spec("resnet50")\n'
        'heavy = {"tensorflow", "keras", "sklearn", "rich"}\n'
        'sys.exit(", ".join(heavy & set(sys.modules)) or 0)'
    )
    done = subprocess.run(
        [sys.executable, '-c', code],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
