"""Trainers of several libraries, each in a process of its own, that learn in turn when they are told to."""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Generator
from multiprocessing import get_context
from multiprocessing.connection import Connection

from ppo_settings import Trainer
from timing import Step

__all__ = ["Contender", "contender"]


class Contender:
    """A trainer in another process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def block(self, threads: int, iterations: int) -> Step:
        """Return what lets it learn for so many iterations with so many of PyTorch's threads, and waits for it.

        It raises EOFError where the process has ended, after it said why.
        """

        def step() -> None:
            self._connection.send((threads, iterations))
            self._connection.recv()

        return step


@contextlib.contextmanager
def contender(module: str) -> Generator[Contender]:
    """Start the `trainer` of `module` in a process, which ends with the block.

    Raises:
        ImportError: What it needs is not installed.
        EOFError: The process ended before it could learn, after it said why.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(module, theirs), name=module)
    process.start()
    # Only where nobody else holds the other end does a process that ends end our waiting for it.
    theirs.close()
    try:
        if missing := ours.recv():
            raise ImportError(missing)
        yield Contender(ours)
    finally:
        # What it waits for comes no more, so it ends.
        ours.close()
        process.join()


def _serve(module: str, connection: Connection) -> None:
    """Import, say what is missing, then learn when asked to."""
    # Read when PyTorch is loaded: its threads, while they wait for work, let the simulator's have the cores.
    os.environ["GOMP_SPINCOUNT"] = "2000"
    import torch

    with (
        tempfile.TemporaryDirectory() as home,
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        # Where RLlib leaves a folder of each run.
        os.environ["HOME"] = home
        try:
            trainer: Trainer = importlib.import_module(module).trainer
        except ImportError as error:
            connection.send(str(error))
            return
        with trainer() as learn:
            connection.send("")
            with contextlib.suppress(EOFError):
                while True:
                    threads, iterations = connection.recv()
                    torch.set_num_threads(threads)
                    learn(iterations)
                    connection.send("")
