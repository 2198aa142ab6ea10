"""Processes of a cluster that are killed, stopped and started again."""

import os
import re
import signal
import subprocess
import threading
import time

import pytest

from kbench import checkpoints
from kbench.commands import launch

_RUN = (
    '--model=trivial',
    '--data_name=cifar10',
    '--device=cpu',
    '--batch_size=2',
    '--num_warmup_batches=1',
    '--display_every=20',
    '--learning_rate=0.0001',
    '--save_model_steps=50',
)


class _Role:
    """A running process and the lines it wrote, errors among them."""

    def __init__(self, command):
        self.command = command
        self.lines = []
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, 'PYTHONUNBUFFERED': '1'},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    def see(self, pattern, timeout=90):
        """Waits for a line."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            for line in list(self.lines):
                if re.search(pattern, line):
                    return line
            time.sleep(0.05)
        raise AssertionError(f'no {pattern!r} in {self.lines}')

    def ends(self, timeout=90):
        """Waits for the end; returns status and text."""
        status = self.process.wait(timeout)
        self._reader.join(5)
        return status, '\n'.join(self.lines)

    def end(self):
        """Ends it, by its own id."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(10)
        self.process.stdout.close()


@pytest.fixture
def start():
    roles = []

    def run(workers, ps, *flags):
        commands = launch.role_commands(workers, ps, False, [*_RUN, *flags])
        found = {name: _Role(command) for name, command in commands.items()}
        roles.extend(found.values())
        return found

    def again(role):
        roles.append(_Role(role.command))
        return roles[-1]

    run.again = again
    yield run
    for role in roles:
        role.end()


@pytest.mark.slow
def test_a_worker_is_killed_and_restarted(start, tmp_path):
    roles = start(
        2,
        1,
        '--variable_update=parameter_server',
        '--num_batches=400',
        f'--train_dir={tmp_path}',
    )
    chief = roles['worker 0']
    chief.see(r'^100\t')
    roles['worker 1'].process.kill()
    roles['worker 1'].process.wait()
    chief.see('worker 1 is lost')
    before = len(chief.lines)
    time.sleep(2)
    assert len(chief.lines) == before
    restarted = start.again(roles['worker 1'])
    status, text = chief.ends()
    assert status == 0, text
    assert 'worker 1 is lost' in text and 'worker 1 is back' in text
    assert restarted.ends()[0] == 0
    assert roles['ps 0'].ends()[0] == 0
    assert checkpoints.all_steps(str(tmp_path))[-1] == 401
    values = checkpoints.load(checkpoints.latest(str(tmp_path)))
    assert int(values['global_step']) == int(values['batches_seen']) == 401


@pytest.mark.slow
def test_a_lost_server_ends_the_job_and_it_resumes(start, tmp_path):
    flags = [
        '--variable_update=distributed_replicated',
        '--num_batches=100000',
        f'--train_dir={tmp_path}',
    ]
    roles = start(1, 2, *flags)
    roles['worker 0'].see(r'^120\t')
    roles['ps 1'].process.kill()
    status, text = roles['worker 0'].ends(60)
    assert status == 1
    path = checkpoints.latest(str(tmp_path))
    assert 'ps 1 is lost' in text and path in text
    status, text = roles['ps 0'].ends(60)
    assert status == 1 and 'ended the job' in text
    saved = checkpoints.all_steps(str(tmp_path))[-1]
    flags[1] = '--num_batches=5'
    roles = start(1, 2, *flags)
    assert roles['worker 0'].ends()[0] == 0
    assert checkpoints.all_steps(str(tmp_path))[-1] == saved + 6


@pytest.mark.slow
def test_a_lost_or_interrupted_chief_ends_the_others(start):
    flags = ('--variable_update=parameter_server', '--num_batches=100000')
    roles = start(2, 1, *flags)
    roles['worker 0'].see(r'^20\t')
    roles['worker 0'].process.kill()
    # While the others find out.
    more = start(1, 1, *flags)
    more['worker 0'].see(r'^20\t')
    more['worker 0'].process.send_signal(signal.SIGINT)
    assert more['worker 0'].ends(60)[0] == 130
    status, text = more['ps 0'].ends(60)
    assert status == 1 and 'ended the job' in text
    for name in ('ps 0', 'worker 1'):
        status, text = roles[name].ends(60)
        assert status == 1
        assert 'worker 0, which is the chief is lost' in text


@pytest.mark.slow
@pytest.mark.parametrize('whom', ['worker 0', 'ps 0'])
def test_sigterm_saves(start, tmp_path, whom):
    roles = start(
        1,
        1,
        '--variable_update=parameter_server',
        '--num_batches=100000',
        '--save_model_steps=100000',
        f'--train_dir={tmp_path}',
    )
    roles['worker 0'].see(r'^20\t')
    roles[whom].process.send_signal(signal.SIGTERM)
    status, text = roles['worker 0'].ends(60)
    assert status == 143
    path = checkpoints.latest(str(tmp_path))
    assert f'saved {path}' in text
    assert int(path.rpartition('-')[2]) >= 20
    status, text = roles['ps 0'].ends(60)
    assert status == (143 if whom == 'ps 0' else 1)


@pytest.mark.slow
def test_all_reduce_worker_lost_then_resumed_then_preempted(start, tmp_path):
    flags = [
        '--variable_update=distributed_all_reduce',
        '--num_batches=100000',
        '--collective_timeout_secs=30',
        f'--train_dir={tmp_path}',
    ]
    roles = start(2, 0, *flags)
    roles['worker 0'].see(r'^120\t')
    roles['worker 1'].process.kill()
    status, text = roles['worker 0'].ends(60)
    assert status == 1
    assert re.search(r'worker 1 at \S+ is lost', text), text
    saved = checkpoints.all_steps(str(tmp_path))[-1]
    roles = start(2, 0, *flags)
    roles['worker 0'].see(f'resuming from .* at step {saved}')
    roles['worker 0'].see(r'^20\t')
    roles['worker 1'].process.send_signal(signal.SIGTERM)
    for name in ('worker 0', 'worker 1'):
        status, text = roles[name].ends(60)
        assert status == 143, text
    last = checkpoints.all_steps(str(tmp_path))[-1]
    assert last >= saved + 20
    assert f'saved {tmp_path}/model.ckpt-{last}' in '\n'.join(
        roles['worker 0'].lines
    )
