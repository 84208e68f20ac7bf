from __future__ import annotations

import signal
import threading
from collections.abc import Generator

import pytest

from sim2real import interrupts

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers_as_in_a_command() -> Generator[None]:
    before = {number: signal.signal(number, signal.default_int_handler) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number.name)
def test_the_first_signal_interrupts_and_those_during_the_end_do_not(number: signal.Signals) -> None:
    with interrupts.handled_once():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        for again in (*NUMBERS, *NUMBERS):
            signal.raise_signal(again)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(number)  # as before


def test_a_command_stays_so_after_a_part_of_it() -> None:
    interrupts.handle_once()
    with interrupts.handled_once(), pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)
    interrupts.handle_once()  # the next command of this process
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_end_that_came_by_itself_is_not_broken_off_and_nothing_is_begun_after_it(number: signal.Signals) -> None:
    with interrupts.handled_once():
        interrupts.arm()
        with interrupts.then_held_back():
            pass
        signal.raise_signal(number)
        with pytest.raises(KeyboardInterrupt):
            interrupts.arm()


def test_each_attempt_can_be_interrupted() -> None:
    with interrupts.handled_once():
        for _ in range(2):
            interrupts.arm()
            with pytest.raises(KeyboardInterrupt), interrupts.then_held_back():
                signal.raise_signal(signal.SIGINT)


def test_an_end_that_takes_for_ever_can_be_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE", 0.0)
    with interrupts.handled_once():
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)


def test_signals_that_mean_something_else_keep_their_meaning() -> None:
    """As under nohup, or where a program has an answer of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts.handled_once():
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_another_thread_can_have_work_to_end() -> None:
    done: list[bool] = []

    def work() -> None:
        with interrupts.handled_once(), interrupts.then_held_back():
            interrupts.arm()
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]
