"""Short versions of what the scripts in benchmarks/ prove at length."""

import os
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[1]


def _run(script, *flags):
    done = subprocess.run(
        [sys.executable, _ROOT / 'benchmarks' / script, *flags],
        env={**os.environ, 'PYTHONPATH': str(_ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_kills_at_random_moments_change_no_bit():
    flags = ('--kills=3', '--epochs=4', '--longest=2', '--fewer')
    last = _run('kill_and_resume.py', *flags).splitlines()[-1]
    assert int(last.split()[0]) >= 1
    assert last.endswith('are the same bit for bit')


@pytest.mark.slow
def test_one_mode_reads_what_another_saved():
    text = _run('checkpoint_modes.py', '--only=replicated x2,all-reduce')
    assert text.splitlines()[-1] == '4 of 4 pairs are right'
