from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sim2real_train.admission import Admission, Ticket, capacity

WORKERS = 5


class AdmissionMachine(RuleBasedStateMachine):
    """Workers begin, finish in any order, die and answer twice; the learner learns whenever it can."""

    @initialize(max_staleness=st.integers(0, 3), chunks_per_update=st.integers(1, 4), version=st.integers(0, 60))
    def start(self, max_staleness: int, chunks_per_update: int, version: int) -> None:
        self.admission: Admission[Ticket] = Admission(
            max_staleness=max_staleness, chunks_per_update=chunks_per_update, version=version
        )
        self.first_version = version
        self.begun: list[tuple[Ticket, int]] = []
        self.incarnations = [0] * WORKERS
        self.ended: list[Ticket] = []
        self.learned: list[Ticket] = []
        self.total = 0

    def _begin(self, rank: int) -> None:
        ticket = self.admission.begin(rank, self.incarnations[rank])
        self.begun.append((ticket, self.admission.version))
        self.total += 1

    def _finish(self, index: int) -> None:
        ticket, version = self.begun.pop(index % len(self.begun))
        accepted = self.admission.finish(ticket, version, ticket)
        assert accepted == (self.admission.version - version <= self.admission.max_staleness)
        self.ended.append(ticket)

    def _learn(self) -> bool:
        batch = self.admission.take()
        if batch is None:
            return False
        assert len(batch) == self.admission.chunks_per_update
        for arrival in batch:
            # The bound, on every sample and not on their mean.
            assert 0 <= self.admission.version - arrival.version <= self.admission.max_staleness
            assert arrival.chunk == arrival.ticket
        self.learned += [arrival.ticket for arrival in batch]
        self.admission.updated()
        return True

    @precondition(lambda self: self.admission.capacity(WORKERS) > 0)
    @rule(rank=st.integers(0, WORKERS - 1))
    def begin(self, rank: int) -> None:
        self._begin(rank)

    @precondition(lambda self: bool(self.begun))
    @rule(index=st.integers(0, 99))
    def finish(self, index: int) -> None:
        self._finish(index)

    @precondition(lambda self: bool(self.begun))
    @rule(index=st.integers(0, 99))
    def die(self, index: int) -> None:
        ticket, _ = self.begun.pop(index % len(self.begun))
        self.incarnations[ticket.rank] += 1
        self.admission.lose(ticket)
        self.ended.append(ticket)

    @precondition(lambda self: bool(self.ended))
    @rule(index=st.integers(0, 99))
    def answer_twice(self, index: int) -> None:
        ticket = self.ended[index % len(self.ended)]
        before = self.admission.waiting, self.admission.accepted, self.admission.refused
        assert not self.admission.finish(ticket, self.admission.version, ticket)
        self.admission.lose(ticket)
        assert (self.admission.waiting, self.admission.accepted, self.admission.refused - 1) == before

    @rule(gone=st.integers(0, 4))
    def lose_some_of_a_batch(self, gone: int) -> None:
        batch = self.admission.take()
        if batch is not None:
            self.admission.give_back(batch, batch[:gone])

    @rule()
    def learn(self) -> None:
        self._learn()

    @invariant()
    def nothing_is_counted_twice_or_forgotten(self) -> None:
        admission = self.admission
        assert len(set(self.learned)) == len(self.learned) == admission.staleness.total()
        ends = admission.waiting + len(self.learned) + admission.dropped + admission.lost
        assert self.total == admission.running + ends
        assert admission.accepted == self.first_version * admission.chunks_per_update + admission.waiting + len(
            self.learned
        )

    @invariant()
    def what_runs_and_waits_is_bounded(self) -> None:
        admission = self.admission
        assert admission.running <= WORKERS
        assert admission.running + admission.waiting <= (admission.max_staleness + 1) * admission.chunks_per_update

    def teardown(self) -> None:
        """No deadlock: from wherever the rules led, calls that end lead to the next updates."""
        if not hasattr(self, "admission"):
            return
        goal = self.admission.version + self.admission.max_staleness + 2
        for _ in range(10 * (WORKERS + 1) * self.admission.chunks_per_update * (self.admission.max_staleness + 2)):
            if self._learn() and self.admission.version == goal:
                return
            if self.admission.capacity(WORKERS) > 0:
                self._begin(self.total % WORKERS)
            else:
                self._finish(0)
        raise AssertionError("the learner waits for ever")


TestAdmission = AdmissionMachine.TestCase
TestAdmission.settings = settings(max_examples=60, stateful_step_count=40)


def simulate(
    chunks_per_update: int,
    max_staleness: int,
    duration: Callable[[random.Random], float],
    *,
    update: float,
    version: int = 0,
    accepted: int | None = None,
    updates: int = 60,
) -> tuple[list[int], int]:
    """Run the admission rule alone, without the filter, on a clock of its own.

    Returns:
        Staleness of each learned chunk, and the largest number of chunks that ran or waited.
    """
    draws = random.Random(1)
    done = version * chunks_per_update if accepted is None else accepted
    running: list[tuple[float, int]] = []
    waiting: list[int] = []
    staleness: list[int] = []
    now, learner_free, most = 0.0, 0.0, 0
    for _ in range(updates):
        while len(waiting) < chunks_per_update or now < learner_free:
            free = capacity(
                max_concurrent=10**6,
                running=len(running),
                accepted=done,
                version=version,
                max_staleness=max_staleness,
                chunks_per_update=chunks_per_update,
            )
            for _ in range(free):
                heapq.heappush(running, (now + duration(draws), version))
            most = max(most, len(running) + len(waiting))
            if not running or (len(waiting) >= chunks_per_update and running[0][0] > learner_free):
                now = learner_free
                continue
            now, of = heapq.heappop(running)
            waiting.append(of)
            done += 1
        batch, waiting = waiting[:chunks_per_update], waiting[chunks_per_update:]
        staleness += [version - of for of in batch]
        learner_free, version = now + update, version + 1
    return staleness, most


def stragglers(draws: random.Random) -> float:
    """Nearly one in six chunks takes six times as long."""
    return 6.0 if draws.random() < 0.15 else 1.0


def test_the_admission_rule_alone_bounds_only_the_mean() -> None:
    staleness, _ = simulate(4, 1, stragglers, update=1.0)
    assert sum(staleness) / len(staleness) <= 1.0
    assert max(staleness) > 1
    # Without stragglers it does bound each of them.
    staleness, _ = simulate(4, 1, lambda draws: 1.0, update=1.0)
    assert max(staleness) == 1


def test_a_resumed_run_has_accepted_what_it_learned() -> None:
    """AReaL's note on recovery: with nothing accepted, a burst begins, and all of it is learned ever later."""
    staleness, most = simulate(4, 2, lambda draws: 0.5, update=1.0, version=50)
    assert (most, max(staleness)) == (12, 2)
    staleness, most = simulate(4, 2, lambda draws: 0.5, update=1.0, version=50, accepted=0)
    assert most == 212
    assert max(staleness) > 8
    assert Admission[None](max_staleness=2, chunks_per_update=4, version=50).capacity(10**6) == 12


@given(st.integers(0, 8), st.integers(1, 8), st.integers(0, 100), st.integers(1, 64))
def test_nothing_learned_for_a_while_lets_no_more_begin(eta: int, batch: int, version: int, workers: int) -> None:
    admission: Admission[None] = Admission(max_staleness=eta, chunks_per_update=batch, version=version)
    for _ in range(min(workers, (eta + 1) * batch)):
        assert admission.capacity(workers) > 0
        admission.begin(0, 0)
    assert admission.capacity(workers) == 0
