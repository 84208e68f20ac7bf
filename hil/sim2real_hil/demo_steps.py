"""The steps of ``sim2real demo``, and the report on them."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from tqdm import tqdm

from sim2real.bundle import read_bundle
from sim2real.command import Outcome
from sim2real.latency import read_latency
from sim2real_hil.bench_sections import latency_section, lockstep_section, motion_section, provenance_section
from sim2real_hil.child import child
from sim2real_hil.demo_results import Evaluation, Exported, Fit, Lockstep, Realtime, Trained, Verified, read, replay_of
from sim2real_hil.provenance import created_now, facts_of
from sim2real_hil.report import Report, Section, verdict_table, write_report
from sim2real_hil.sections import (
    LearningCurve,
    ParityError,
    SuccessRate,
    calibration_section,
    evaluation_section,
    parity_section,
    training_section,
)
from sim2real_hil.trajectory import read_trajectory

if TYPE_CHECKING:
    from sim2real_hil.demo import DemoArgs

__all__ = ["take_all"]

_TASK: Final = "pendulum-swingup"
_ROBOT: Final = "pendulum"
_NAMES: Final = ("calibrate", "train", "evaluate", "export", "verify", "lockstep", "realtime")
_REQUIRED: Final = {"nominal": 0.95, "calibrated": 0.90}
"""Smallest share of starts from which each kind of plant must be swung up."""
_STARTS: Final = "256"
_GRACE_S: Final = 5.0
"""Time for a step to end by itself on Ctrl-C: training has processes of its own to end."""


def take_all(args: DemoArgs) -> Outcome:
    """Take the steps one after the other and write the report."""
    began = time.monotonic()
    steps = _Steps(args)
    sections = [steps.calibrate(), steps.train(), steps.evaluate(), steps.export_and_verify()]
    # An export that fails its parity leaves no bundle: the report then ends with what failed.
    if steps.bundle.exists():
        sections += [steps.lockstep(), *steps.realtime(), provenance_section(facts_of(read_bundle(steps.bundle)))]
    report = Report(
        title=f"{_TASK}: from logs to verdict",
        created=created_now(),
        elapsed_s=time.monotonic() - began,
        sections=tuple(sections),
    )
    page, data, junit = write_report(report, args.out)
    result = {
        "passed": report.passed,
        "elapsed_s": report.elapsed_s,
        "step_elapsed_s": steps.elapsed_s,
        "verdicts": [msgspec.structs.asdict(verdict) for verdict in report.verdicts],
        "report": {"html": page, "json": data, "junit": junit},
    }
    told = f"{verdict_table(report.verdicts)}\n{report.elapsed_s:.0f} s; report: {page}"
    return Outcome(passed=report.passed, result=result, summary=told)


class _Steps:
    """Each step runs its commands and returns its part of the report."""

    def __init__(self, args: DemoArgs) -> None:
        self._out = args.out
        self._seed = args.seed
        self._fast = args.fast
        self._ranges = str(args.out / "randomization.json")
        self._checkpoint = str(args.out / "train" / "checkpoint")
        self.bundle = args.out / "policy.s2r"
        self.elapsed_s: dict[str, float] = {}

    def calibrate(self) -> Section:
        self._begin("calibrate")
        data = os.environ.get("SIM2REAL_DATA")
        fit_on, validate_on = self._record() if not data else _real_logs(Path(data))
        words = ["calib", "fit", _ROBOT, *fit_on, "--validate", *validate_on, "--out", self._ranges]
        fit = read(self._run(words), Fit, "calib fit")
        return calibration_section(
            fit.randomization,
            limits={"fitted": fit.max_error},
            replay=replay_of(fit.traces),
            excluded=fit.excluded,
            elapsed_s=self._end("calibrate"),
        )

    def _record(self) -> tuple[list[str], list[str]]:
        """Record logs of a plant that the fit knows nothing of; return those to fit and those to judge by."""
        logs = [str(self._out / "logs" / f"take_{take}.csv") for take in range(3)]
        for take, log in enumerate(logs):
            self._run(["calib", "record", _ROBOT, "--seed", str(self._seed), "--take", str(take), "--out", log])
        return logs[:2], logs[2:]

    def train(self) -> Section:
        """Learn on plants that are drawn from the calibrated ranges."""
        self._begin("train")
        length = ["--iterations", "2"] if self._fast else []
        out = str(self._out / "train")
        words = ["train", _TASK, "--randomization", self._ranges, "--out", out, "--seed", str(self._seed), *length]
        trained = read(self._run(words), Trained, "train").curve
        curve = LearningCurve(
            env_steps=trained.column("env_steps"),
            mean_return=trained.column("mean_return"),
            success_rate=trained.column("success"),
        )
        return training_section(curve, task=_TASK, elapsed_s=self._end("train"))

    def evaluate(self) -> Section:
        """Measure success on nominal plants and on calibrated ones, from other starts than training's."""
        self._begin("evaluate")
        results = {
            "nominal": self._evaluate("nominal", []),
            "calibrated": self._evaluate("calibrated", ["--randomization", self._ranges]),
        }
        rates = [
            SuccessRate(
                plants=plants,
                starts=result.starts,
                successes=result.successes,
                interval=result.success_interval,
                required=_REQUIRED[plants],
            )
            for plants, result in results.items()
        ]
        return evaluation_section(rates, criterion=results["nominal"].criterion, elapsed_s=self._end("evaluate"))

    def _evaluate(self, plants: str, ranges: Sequence[str]) -> Evaluation:
        required = str(_REQUIRED[plants])
        words = ["evaluate", self._checkpoint, *ranges, "--starts", _STARTS, "--min-success", required]
        return read(self._run([*words, "--seed", str(self._seed + 1)]), Evaluation, "evaluate")

    def export_and_verify(self) -> Section:
        """Make the bundle, then let the edge's engines prove themselves on it."""
        self._begin("export")
        exported = read(self._run(["export", self._checkpoint, "--out", str(self.bundle)]), Exported, "export")
        elapsed_s = self._end("export")
        errors = [
            ParityError(
                between=f"trainer and {parity.engine} (measurements: {parity.measurements})",
                error=math.inf if parity.error is None else parity.error,
                tolerance=parity.tolerance,
                steps=parity.steps,
            )
            for parity in exported.parity
        ]
        if exported.bundle is not None:
            self._begin("verify")
            verified = read(self._run(["verify", str(self.bundle)]), Verified, "verify")
            elapsed_s += self._end("verify")
            errors += [
                ParityError(
                    between=f"bundle and {golden.engine} ({golden.precision}, golden run)",
                    error=golden.action_error,
                    tolerance=golden.tolerance,
                    steps=golden.steps,
                )
                for golden in verified.golden
            ]
        return parity_section(errors, elapsed_s=elapsed_s)

    def lockstep(self) -> Section:
        """Prove that the wire changes nothing."""
        self._begin("lockstep")
        result = self._bench("lockstep", ["--ticks", "200" if self._fast else "2000"])
        self._end("lockstep")
        return lockstep_section(read(result, Lockstep, "hil run").lockstep)

    def realtime(self) -> tuple[Section, Section]:
        """Judge latency, and watch the swing-up."""
        self._begin("realtime")
        result = self._bench("realtime", ["--seconds", "2" if self._fast else "20"])
        counts = read(result, Realtime, "hil run").counts
        contract = read_bundle(self.bundle).contract
        out = self._out / "hil" / "realtime"
        latency, trajectory = read_latency(out / "latency.json"), read_trajectory(out / "trajectory.npz")
        return (
            latency_section(latency, contract, counts, elapsed_s=self._end("realtime")),
            motion_section(trajectory, contract, title="Swing-up"),
        )

    def _bench(self, mode: str, length: Sequence[str]) -> dict[str, Any]:
        out = str(self._out / "hil" / mode)
        return self._run(
            ["hil", "run", str(self.bundle), "--mode", mode, "--seed", str(self._seed), "--out", out, *length]
        )

    def _begin(self, name: str) -> None:
        self.elapsed_s[name] = -time.monotonic()
        _say(f"[{_NAMES.index(name) + 1}/{len(_NAMES)}] {name}")

    def _end(self, name: str) -> float:
        self.elapsed_s[name] += time.monotonic()
        _say(f"      {name}: {self.elapsed_s[name]:.1f} s")
        return self.elapsed_s[name]

    def _run(self, words: Sequence[str]) -> dict[str, Any]:
        _say(f"      sim2real {' '.join(words)}")
        with child(words, show=True, grace_s=_GRACE_S) as process:
            return process.result(None)


def _real_logs(data: Path) -> tuple[list[str], list[str]]:
    """Return the real logs to fit and those to judge by."""
    folder = data / "simple_pendulum"
    fit_on = [str(folder / f"{name}_measured.csv") for name in ("system_identification", "energy_shaping")]
    return fit_on, [str(folder / "sac_measured.csv")]


def _say(line: str) -> None:
    # Progress bars of an earlier command may still stand on the line.
    tqdm.write(line, file=sys.stderr)
