"""Searches for settings with Ray Tune: real processes, killed and interrupted. About 55 s, most of it Ray's starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest

from sim2real.errors import InputError
from sim2real_train.checkpoint import read_checkpoint
from sim2real_train.provenance import read_record
from sim2real_train.run_folder import claimed
from sim2real_train.search_space import check_space, domain_of, parse_space
from sim2real_train.trial import MetricsTail, Training, TrialSettings, await_end, last_of
from sim2real_train.tune import SearchFailedError, TrialResult, TuneArgs, TuneResult, ranked, run_tune
from tests.train.builders import TASK, metrics, small_config
from tests.train.processes import PATIENCE, SIM2REAL, ended_at_last, read_until, told

SMALL = ("--num-envs=8", "--num-steps=16", "--hidden=16", "--evaluate-starts=4", "--save-every=1")


def args(out: Path, **changes: Any) -> TuneArgs:
    space = ("algorithm.learning_rate=log:1e-4..1e-2",)
    fields: dict[str, Any] = {"space": space, "trials": 2, "iterations": 2, "train_args": SMALL}
    return TuneArgs(task=TASK, out=out, **(fields | changes))


@contextmanager
def searching(out: Path, *words: str, before: str = "exec ", after: str = "") -> Generator[subprocess.Popen[bytes]]:
    """A search as a user starts it in a terminal, in whose process group Ctrl-C reaches all."""
    options = [f"--train-args={word}" for word in SMALL]
    command = [SIM2REAL, "tune", TASK, "--out", str(out), *words, *options]
    namespace = ["unshare", "--map-root-user", "--mount"] if after else []
    process = subprocess.Popen(
        [*namespace, "sh", "-c", f'{before}"$@"{after}', "sh", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with ended_at_last(process):
        yield process


def finish(process: subprocess.Popen[bytes]) -> tuple[int, str, list[str]]:
    """Wait for the end; return the exit code, stdout, and the lines of stderr but for the progress bar's."""
    stdout, stderr = process.communicate(timeout=PATIENCE)
    return process.returncode, stdout.decode(), told(stderr, "tune")


def wait_for_a_result(process: subprocess.Popen[bytes]) -> None:
    read_until(process, lambda seen: b"mean_reward=" in seen)


def read_result(out: Path) -> TuneResult:
    return msgspec.json.decode(
        (out / "tune.json").read_bytes(), type=TuneResult, dec_hook=lambda kind, text: kind(text)
    )


@pytest.mark.slow
def test_trials_are_runs_and_the_best_comes_first(tmp_path: Path) -> None:
    """Nothing but the result goes to stdout, and nothing but progress to stderr."""
    out = tmp_path / "search"
    space = ("--space", "algorithm.learning_rate=log:1e-4..1e-2", "algorithm.epochs=log:1..3")
    with searching(out, *space, "--trials", "2", "--iterations", "2", "--grace", "1", "--json") as process:
        code, stdout, lines = finish(process)
    assert (code, lines) == (0, [])
    result = read_result(out)
    assert msgspec.json.decode(stdout) == msgspec.json.decode((out / "tune.json").read_bytes())
    assert not result.interrupted
    rewards = [trial.metric for trial in result.trials]
    assert len(rewards) == 2
    assert None not in rewards
    assert rewards == sorted(rewards, key=lambda value: value or 0.0, reverse=True)
    for trial in result.trials:
        assert trial.error is None
        algorithm: Any = read_record(trial.out).config.algorithm
        assert trial.settings == {
            "algorithm.learning_rate": algorithm.learning_rate,
            "algorithm.epochs": algorithm.epochs,
        }
        assert 1e-4 <= algorithm.learning_rate <= 1e-2
        assert 1 <= algorithm.epochs <= 3
    names = {trial.out.name for trial in result.trials}
    assert {path.name for path in out.iterdir()} == {".lock", "tune.json"} | names | {f"{name}.log" for name in names}


@pytest.mark.slow
def test_a_search_goes_on_without_a_stderr(tmp_path: Path) -> None:
    out = tmp_path / "search"
    words = ("--space", "algorithm.clip=0.1|0.2", "--trials", "1", "--iterations", "2")
    with searching(out, *words, before="exec 2>/dev/full; exec ") as process:
        assert finish(process)[0] == 0
    assert read_result(out).trials[0].metric is not None


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_trials_and_keeps_what_is_known(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "search"
    words = ("--space", "algorithm.clip=0.1|0.2", "--trials", "3", "--iterations", "1000000")
    with searching(out, *words) as process:
        wait_for_a_result(process)
        family = psutil.Process(process.pid).children(recursive=True)
        assert any("sim2real_train.trial" in each.cmdline() for each in family)
        if number == signal.SIGINT:
            # Whoever waits presses it again.
            os.killpg(process.pid, number)
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        code, stdout, lines = finish(process)
        assert not [each for each in family if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    assert (code, stdout) == (2, "")
    assert lines == [f"error: interrupted; {out / 'tune.json'} tells of the trials so far (1)"]
    result = read_result(out)
    assert result.interrupted
    (trial,) = result.trials
    assert trial.error is None
    assert trial.metric is not None
    assert 1 <= read_checkpoint(trial.out / "checkpoint").state.iteration <= trial.iterations
    assert not list(out.rglob("*.partial"))


@pytest.mark.slow
def test_a_full_disk_is_told_in_one_line(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["unshare", "--map-root-user", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("needs a kernel that lets users mount in a namespace of their own")
    # Room for a folder and a log, and for nothing of what is to be kept.
    words = ("--space", "algorithm.clip=0.1|0.2", "--trials", "1", "--iterations", "2")
    look = f"find {disk} -name '*.partial' -o -name tune.json"
    mount = f"mount -t tmpfs -o size=64k none {disk} && head -c 64k /dev/zero > {disk}/full"
    with searching(disk / "search", *words, before=f"{mount}; ", after=f"; code=$?; {look}; exit $code") as process:
        code, stdout, lines = finish(process)
    assert (code, stdout) == (2, "")
    (line,) = lines
    assert line.startswith("error: ")
    assert "No space left on device" in line


@pytest.fixture
def settings(tmp_path: Path) -> TrialSettings:
    return TrialSettings(
        task=TASK,
        words=(*SMALL, "--iterations=1000000"),
        metric="mean_reward",
        out=str(tmp_path),
        directory=str(tmp_path),
        stop=str(tmp_path / "stop"),
    )


def test_a_killed_training_keeps_its_figures_and_says_what_killed_it(settings: TrialSettings, tmp_path: Path) -> None:
    training = Training(settings, {"algorithm.clip": 0.1}, "trial")
    assert training.pid is not None
    assert psutil.Process(training.pid).cwd() == str(tmp_path), "relative paths among its options are the user's"
    first = training.next_result()
    assert (first["iteration"], first["error"], first["done"]) == (1, "", False)
    os.kill(training.pid, signal.SIGKILL)
    while not (last := training.next_result())["done"]:
        assert last["error"] == ""
    assert last["error"] == "killed by SIGKILL"
    assert (tmp_path / "trial.log").read_text().splitlines()[-1].startswith("train:"), "its bar was to be the last line"
    iteration, reached = last_of(tmp_path / "trial", "mean_reward")
    assert iteration == last["iteration"] >= 1
    assert reached is not None


def test_a_training_that_refuses_says_why(settings: TrialSettings) -> None:
    training = Training(settings, {"algorithm.clap": 0.1}, "trial")
    result = training.next_result()
    assert result["done"]
    assert result["error"].startswith("--set: no field named 'algorithm.clap'")


def test_no_training_is_begun_once_trials_are_to_end(settings: TrialSettings, tmp_path: Path) -> None:
    Path(settings.stop).touch()
    late = Training(settings, {"algorithm.clip": 0.1}, "late")
    assert late.pid is None
    assert late.next_result()["done"]
    assert [path.name for path in tmp_path.iterdir()] == ["stop"]


ORPHAN = """
import sys
import msgspec
from sim2real_train.trial import Training, TrialSettings
training = Training(msgspec.json.decode(sys.argv[1], type=TrialSettings), {}, "trial")
training.next_result()
print(training.pid, flush=True)
sys.stdin.read()
"""


def test_a_training_does_not_outlive_the_process_that_watches_it(settings: TrialSettings, tmp_path: Path) -> None:
    command = [sys.executable, "-c", ORPHAN, msgspec.json.encode(settings).decode()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as watcher:
        assert watcher.stdout is not None
        training = psutil.Process(int(watcher.stdout.readline()))
        family = [training, *training.children(recursive=True)]
        watcher.kill()
    await_end(tmp_path)
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert not alive
    assert read_checkpoint(tmp_path / "trial" / "checkpoint").state.iteration >= 1


def trial(metric: float | None, error: str | None = None) -> TrialResult:
    return TrialResult(out=Path("run"), settings={}, iterations=3, metric=metric, error=error)


def test_trials_that_failed_come_last_whatever_they_reached() -> None:
    worst_first = (trial(None, "refused"), trial(9.0, "killed by SIGKILL"), trial(None), trial(-2.0), trial(1.0))
    assert ranked(worst_first) == worst_first[::-1]


def test_what_counts_is_what_a_training_came_to(tmp_path: Path) -> None:
    """Not what the untrained policy got, which is the same in all trials."""
    rewards = [(1, 0.9), (2, 0.1)]
    lines = [msgspec.structs.replace(metrics(iteration), mean_reward=value) for iteration, value in rewards]
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    assert last_of(tmp_path, "mean_reward") == (2, 0.1)


def test_each_iteration_is_told_of_once_also_where_a_training_goes_on_from_a_checkpoint(tmp_path: Path) -> None:
    """It writes its metrics anew then, from the first iteration on."""
    file = tmp_path / "metrics.jsonl"
    tail = MetricsTail(file)

    def write(last: int, half: bytes = b"") -> None:
        file.write_bytes(b"".join(msgspec.json.encode(metrics(each)) + b"\n" for each in range(1, last + 1)) + half)

    def told() -> list[int]:
        return [each["iteration"] for each in iter(tail.next, None)]

    assert told() == []
    write(3, b'{"iteration":')
    assert told() == [1, 2, 3]
    assert last_of(tmp_path, "mean_reward") == (3, 0.25)
    assert last_of(tmp_path, "mean_return") == (3, None)
    write(2)
    assert told() == []
    write(5)
    assert told() == [4, 5]
    # Longer than what was read, and with other lines.
    file.write_bytes(b'{"iteration":1,"long":"' + b"x" * 5000 + b'"}\n')
    assert told() == []
    write(7)
    assert told() == [6, 7]


@pytest.mark.slow
def test_a_search_without_results_fails_and_tells_why(tmp_path: Path) -> None:
    words = (*SMALL, "--address=127.0.0.1:1")
    with pytest.raises(SearchFailedError, match=r"^no trial came to a result: --address: nobody answers at .*:1 .*"):
        run_tune(args(tmp_path / "search", trials=1, train_args=words))
    (failed,) = read_result(tmp_path / "search").trials
    assert failed.error is not None
    assert failed.metric is None


@pytest.mark.parametrize(
    ("assignment", "told"),
    [
        ("algorithm.clip", "expected NAME=LOW..HIGH"),
        ("algorithm.clip=0.2..0.1", "expected LOW < HIGH"),
        ("algorithm.clip=log:0..0.1", "expected 0 < LOW < HIGH"),
        ("algorithm.clip=a..b", "expected two numbers"),
        ("algorithm.clip=nan..1", "expected LOW < HIGH"),
        ("algorithm.clip=|", "expected a value on either side of each |"),
        ("algorithm.clip=0.1|", "expected a value on either side of each |"),
        ("task=acrobot-swingup|so101-reach", "task: one search is about one task"),
    ],
)
def test_what_is_no_space_is_told(assignment: str, told: str) -> None:
    with pytest.raises(InputError, match=told.replace("|", r"\|")):
        parse_space([assignment])


def test_a_field_is_drawn_once_and_something_is() -> None:
    with pytest.raises(InputError, match="named twice"):
        parse_space(["seed=0..1", "seed=2|3"])
    with pytest.raises(InputError, match="one field or more"):
        parse_space([])


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"space": ("algorithm.clap=0.1..0.2",)}, r"no field named 'algorithm\.clap'; did you mean algorithm\.clip"),
        ({"space": ("algorithm.clip=tanh|elu",)}, r"--space: algorithm\.clip: expected a number .*, got .?tanh"),
        ({"space": ("algorithm.epochs=1..2.5",)}, r"--space: algorithm\.epochs: expected an integer .*, got 2\.5"),
        (
            {"space": ("algorithm.discount=0.9..1.5",)},
            r"--space: algorithm\.discount: expected a number > 0 and < 1, got 1\.5",
        ),
        (
            {"space": ("algorithm.discount=-1..0.9",)},
            r"--space: algorithm\.discount: expected a number > 0 and < 1, got -1",
        ),
        ({"space": ("model.activation=elu|tanhh",)}, r"model\.activation: .*'tanhh'"),
        # Each is allowed by itself, and the second not with what the others are.
        ({"space": ("num_workers=1..3",)}, r"num_envs: expected a multiple of num_workers \(3\), got 8"),
        ({"train_args": (*SMALL, "--bogus")}, r"--train-args: .*--bogus"),
        ({"train_args": (*SMALL, "--num-envs=-3")}, "num_envs: expected an integer >= 1"),
        ({"train_args": (*SMALL, "--hidden=0")}, r"model\.hidden"),
        ({"train_args": ("--set=algorithm.learning_rate=1",)}, r"algorithm\.learning_rate: is set by --train-args too"),
        ({"train_args": ("--set=task=acrobot-swingup",)}, "task: one search is about one task"),
        (
            {"train_args": (*SMALL, "--iterations=4")},
            "--iterations 2: --train-args=--iterations=4 says it already; keep one",
        ),
        (
            {"space": ("num_envs=8|16",), "train_args": ("--num-envs=8",)},
            "--space num_envs: --train-args=--num-envs 8 says it already; keep one",
        ),
        ({"train_args": ("--out=elsewhere",)}, "--out: is not for the trainings of a search"),
        ({"train_args": ("--resume",)}, "--resume: is not for the trainings of a search"),
        ({"train_args": ("--json",)}, "--json: is not for the trainings of a search"),
        ({"train_args": ("--help",)}, "--help: is not for the trainings of a search"),
        ({"trials": 0}, "--trials: expected a number"),
    ],
)
def test_a_search_that_cannot_be_made_writes_nothing(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told) as caught:
        run_tune(args(tmp_path / "search", **changes))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("assignment", "kind", "low", "high"),
    [
        ("algorithm.epochs=2..4", int, 2, 4),
        ("algorithm.epochs=log:2..4", int, 2, 4),
        # The ends are whole numbers, the field is not.
        ("algorithm.value_coefficient=1..3", float, 1, 3),
        ("algorithm.value_coefficient=log:1..3", float, 1, 3),
    ],
)
def test_a_range_draws_what_its_field_takes_ends_included(assignment: str, kind: type, low: int, high: int) -> None:
    (axis,) = parse_space([assignment])
    domain = domain_of(axis, check_space(small_config(), [axis])[axis.name])
    drawn: list[Any] = np.asarray(domain.sample(size=300, random_state=np.random.RandomState(0))).tolist()
    assert {type(each) for each in drawn} == {kind}
    assert low <= min(drawn) < max(drawn) <= high
    if kind is int:
        assert set(drawn) == set(range(low, high + 1))


@pytest.mark.parametrize("out", ["file", "file/below", "/proc/search", "x" * 300])
def test_a_folder_that_cannot_be_is_refused_in_one_line(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"cannot be written to|expected a folder, .* got a file") as caught:
        run_tune(args(tmp_path / out))
    assert "\n" not in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(InputError, match="is not empty"):
        run_tune(args(tmp_path))


def test_two_searches_do_not_share_a_folder(tmp_path: Path) -> None:
    with claimed(tmp_path), pytest.raises(InputError, match="another training is writing to"):
        run_tune(args(tmp_path))
