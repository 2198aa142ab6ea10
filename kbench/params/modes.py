"""What a run does: it trains unless one parameter says otherwise."""

from typing import Any

# Parameter: name of what it makes of the run.
MODES = {
    'benchmark_input': 'input',
    'benchmark_all_reduce': 'all-reduce',
    'eval': 'evaluation',
    'forward_only': 'forward-only',
}
TRAINING = 'training'


def flags(params: Any) -> list[str]:
    """The parameters of `MODES` that are set; legal is one at most."""
    return [name for name in MODES if getattr(params, name)]


def mode(params: Any) -> str:
    """Name of what a run does, as the header and the result have it."""
    chosen = flags(params)
    return MODES[chosen[0]] if chosen else TRAINING


def excluded(params: Any, *legal: str) -> str | None:
    """The parameter that makes of the run what it must not be.

    Args:
        params: of the run.
        *legal: parameters of `MODES` that may be set; a training always may.
    """
    chosen = [name for name in flags(params) if name not in legal]
    return chosen[0] if chosen else None
