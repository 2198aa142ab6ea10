"""The examples: their flags exist, and their clusters are clusters."""

import os
import pathlib
import re
import stat
import subprocess

import pytest

import kbench
from kbench import cluster, job
from kbench.params import table

_EXAMPLES = pathlib.Path(__file__).parents[1] / 'examples'
_MODES = ('all_reduce', 'parameter_server', 'distributed_replicated')
_YAML = sorted(_EXAMPLES.glob('*.yaml'))
# Stands for python: shows what it would have been started with.
_STUB = r"""#!/bin/bash
echo "$TF_CONFIG" | tr -d '\n'; echo
printf '%s\n' "$@"
"""


def _params(tokens):
    """Parameters from --name=value, in the types of the table."""
    values = {}
    for token in tokens:
        name, _, value = token.removeprefix('--').partition('=')
        kind = table.TABLE[name].python_type
        values[name] = kind(value)
    return kbench.make_params(**values)


@pytest.fixture
def stubs(tmp_path):
    """An environment whose python and srun only show their arguments."""
    srun = '#!/bin/bash\nexec "$@"'
    for name, text in (('python', _STUB), ('srun', srun)):
        path = tmp_path / name
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {'PATH': f'{tmp_path}:{os.environ["PATH"]}'}


def _run(script, stubs, mode, *arguments):
    done = subprocess.run(
        ['bash', str(_EXAMPLES / script), *arguments],
        env=stubs | {'MODE': mode},
        capture_output=True,
        text=True,
        check=True,
    )
    config, *words = done.stdout.splitlines()
    assert words[:2] == ['-m', 'kbench']
    return config, _params(words[2:])


@pytest.mark.parametrize('mode', _MODES)
@pytest.mark.parametrize('index', [0, 1])
def test_tf_config(stubs, mode, index):
    config, params = _run('tf_config.sh', stubs, mode, 'worker', str(index))
    found = cluster.from_tf_config(config)
    assert found.name == f'worker {index}'
    topology = job._topology(params, found)
    assert topology == ('peers' if mode == 'all_reduce' else 'servers')


@pytest.mark.parametrize('mode', _MODES)
def test_slurm(stubs, mode):
    _, params = _run('slurm.sh', stubs, mode)
    assert params.cluster == 'slurm'
    assert bool(params.slurm_ps) == (mode != 'all_reduce')


def test_every_mode_has_both_kubernetes_examples():
    wanted = {
        f'{kind}_{mode}.yaml'
        for kind in ('tfjob', 'indexed_job')
        for mode in _MODES
    }
    assert {path.name for path in _YAML} == wanted


@pytest.mark.parametrize('path', _YAML, ids=lambda path: path.name)
def test_kubernetes(path):
    text = path.read_text()
    assert '\t' not in text
    kinds = re.findall(r'^kind: (\w+)$', text, re.MULTILINE)
    tokens = [
        token for token in re.findall(r'--\w+=\S+', text) if '$' not in token
    ]
    if kinds == ['TFJob']:
        assert 'apiVersion: kubeflow.org/v1' in text
        roles = re.findall(r'^    (\w+):$', text, re.MULTILINE)
        alike = 'all_reduce' in path.name
        assert roles == (['Worker'] if alike else ['Chief', 'PS', 'Worker'])
        each = len(tokens) // len(roles)
        for start in range(0, len(tokens), each):
            assert _params(tokens[start : start + each]).num_batches == 100
        return
    assert kinds == ['Service', 'Job']
    assert 'completionMode: Indexed' in text
    params = _params([*tokens, '--job_name=worker', '--task_index=0'])
    found = job._read(params, {})
    count = int(re.search(r'completions: (\d+)', text).group(1))
    assert len(found.tasks()) == count
    topology = job._topology(params, found)
    assert topology == ('peers' if 'all_reduce' in path.name else 'servers')
