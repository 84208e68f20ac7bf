from __future__ import annotations

import pytest
from tqdm import tqdm

from sim2real_train.messages import Stderr, tell


def test_a_line_is_not_written_into_the_progress_bar(capfd: pytest.CaptureFixture[str]) -> None:
    with tqdm(total=3, file=Stderr()) as bar:
        bar.update()
        bar.refresh()
        tell("a worker died")
        bar.update()
    (line,) = [line for line in capfd.readouterr().err.split("\n") if "a worker died" in line]
    # What is seen of it: what comes after the cursor went back to the start of the line, which was wiped before.
    *_, wiped, seen = line.split("\r")
    assert (wiped.strip(), seen) == ("", "a worker died")
