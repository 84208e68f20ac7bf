from __future__ import annotations

import signal
import threading

import pytest

from sim2real_train.interrupts import Interrupts


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_the_first_signal_interrupts_and_those_during_the_end_do_not(number: signal.Signals) -> None:
    before = signal.signal(number, signal.default_int_handler)
    try:
        with Interrupts():
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
            for _ in range(5):
                signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)  # as before
    finally:
        signal.signal(number, before)


def test_an_end_that_came_by_itself_is_not_broken_off_either_and_the_next_attempt_is_not_begun() -> None:
    with Interrupts() as interrupts:
        interrupts.arm()
        with interrupts.then_held_back():
            pass
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.arm()


def test_each_attempt_can_be_interrupted() -> None:
    with Interrupts() as interrupts:
        for _ in range(2):
            interrupts.arm()
            with pytest.raises(KeyboardInterrupt), interrupts.then_held_back():
                signal.raise_signal(signal.SIGINT)


def test_an_end_that_takes_for_ever_can_be_broken_off() -> None:
    with Interrupts(patience=0.0):
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)


def test_signals_that_mean_something_else_keep_their_meaning() -> None:
    """As under nohup, or where a program has an answer of its own."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_can_train() -> None:
    done: list[bool] = []

    def work() -> None:
        with Interrupts() as interrupts:
            interrupts.arm()
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
