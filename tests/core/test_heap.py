from __future__ import annotations

import gc

from sim2real.heap import frozen_heap


def test_what_is_alive_is_left_out_of_collections_only_within_the_block() -> None:
    gc.unfreeze()
    with frozen_heap():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0


def test_what_was_frozen_before_stays_so() -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    with frozen_heap():
        pass
    assert gc.get_freeze_count() >= before
