"""Environments that have run for long are no larger than others. About 4 s."""

from __future__ import annotations

import gc
import tracemalloc

from tests.core.task_rig import actions, make_env, task_of

STEPS = 1000
LEAST = 48
"""Bytes of the smallest array that a step could leave behind, without what is in it."""


def test_nothing_grows_with_time() -> None:
    """Neither Python's objects nor NumPy's arrays, over pushes, late messages and hundreds of new episodes."""
    env = make_env(task_of("go2-velocity-flat"), 8)
    sequence = actions(env, 50)
    for action in sequence:
        env.step(action)
    restarts = 0
    tracemalloc.start()
    try:
        for number in range(STEPS):
            if number == len(sequence):
                gc.collect()
                tracemalloc.clear_traces()
            restarts += len(env.step(sequence[number % len(sequence)]).done_ids)
        gc.collect()
        left_behind, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert restarts > 100
    assert left_behind < LEAST * (STEPS - len(sequence))
