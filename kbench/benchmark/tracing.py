"""Which steps of a run are profiled, and when."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from kbench import params as params_lib
from kbench import traces

# Steps that are profiled.
TRACED_STEPS = 3

_log = logging.getLogger('kbench')


def extra_steps(params: params_lib.Params) -> int:
    """Untimed steps that a profile adds between warm-up and timing."""
    wanted = params.trace_file is not None or params.tfprof_file is not None
    return TRACED_STEPS if wanted else 0


@contextlib.contextmanager
def _tracing(program: Any, steps: int) -> Iterator[None]:
    params, replicas = program.params, program.replicas
    if not replicas.is_chief:
        yield
        return
    if replicas.remote:
        _log.warning(
            'the profile shows the coordinator only, not the workers that '
            'compute'
        )
    with traces.tracing(params.trace_file, params.tfprof_file, steps):
        yield
    for name in ('trace_file', 'tfprof_file'):
        if getattr(params, name) is not None:
            _log.info('wrote --%s=%s', name, getattr(params, name))


def untimed(
    program: Any, num_steps: int
) -> list[tuple[str, int, AbstractContextManager]]:
    """Divides the steps before the timing.

    Args:
        program: the objects of the run.
        num_steps: steps before the timing; the last ones are profiled.

    Returns:
        Name, number of steps, and what surrounds them.
    """
    traced = min(extra_steps(program.params), num_steps)
    parts = [('warming up', num_steps - traced, contextlib.nullcontext())]
    if traced:
        parts.append(('tracing', traced, _tracing(program, traced)))
    return parts


def around_timed(
    training: Any, num_untimed: int, num_timed: int
) -> AbstractContextManager:
    """Profiles the timed steps of a run that has no others."""
    program = training.program
    wanted = extra_steps(program.params) and not training.recoveries
    if num_untimed or not wanted:
        return contextlib.nullcontext()
    _log.warning('no step is left to trace: the timed one is traced')
    return _tracing(program, num_timed)


def with_graph(program: Any, step: Callable) -> Callable:
    """Lets the first step of the chief write `graph_file`."""
    path = program.params.graph_file
    if path is None or not program.replicas.is_chief:
        return step
    return traces.with_graph_file(step, path)
