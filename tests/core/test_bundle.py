"""A bundle is read as it was written, or refused with one line that says what to do."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import random
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim2real import __version__
from sim2real.bundle import Bundle, Manifest, Member, read_bundle, write_bundle
from sim2real.canonical_zip import MAX_BYTES, pack, unpack
from sim2real.contract import PolicyContract, contract_hash, encode_contract
from sim2real.errors import BundleError, InputError
from sim2real.npz import write_npz
from sim2real.signing import one_time_signing_key, public_key_of, sign
from tests.core.strategies import contracts, model_without_graph, pendulum_contract, random_golden, with_field

CONTRACT = pendulum_contract()
ACTIONS = (
    "copy it again",
    "copy or export it again",
    "export it again",
    "give the path of a policy bundle",
    "give the path of an existing policy bundle",
)


def _write(path: Path, contract: PolicyContract = CONTRACT, **changes: Any) -> Bundle:
    arguments: dict[str, Any] = {
        "contract": contract,
        "models": {"float32": model_without_graph(encode_contract(contract))},
        "golden": random_golden(contract),
        "created_by": "test",
    }
    return write_bundle(path, **(arguments | changes))


def _signed(files: dict[str, bytes], **changes: Any) -> bytes:
    """Return a bundle of `members` that a stranger made: a consistent manifest, validly signed."""
    payload = {name: content for name, content in files.items() if not name.startswith("manifest")}
    manifest = Manifest(
        schema_version=1,
        toolkit_version="9.9.9",
        created_by="test",
        contract_sha256=hashlib.sha256(payload.get("contract.json", b"")).hexdigest(),
        members=tuple(
            Member(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())
            for name, content in sorted(payload.items())
        ),
    )
    text = msgspec.json.encode(msgspec.structs.replace(manifest, **changes))
    key = one_time_signing_key()
    line = f"ed25519 {public_key_of(key)} {sign(key, text).hex()}\n".encode()
    return pack({**payload, "manifest.json": text, "manifest.sig": line})


def _refusal(path: Path) -> str:
    with pytest.raises(BundleError) as caught:
        read_bundle(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("bundle") / "policy.s2r"
    _write(path)
    return path.read_bytes()


@settings(max_examples=15, deadline=None)
@given(contract=contracts(extreme=True), folder=st.booleans())
def test_reads_back_what_was_written(
    contract: PolicyContract, folder: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("round") / "policy.s2r"
    calibration = write_npz({"observations": np.ones((4, contract.model.observation_size), np.float32)})
    extras = {"calibration.npz": calibration, "acceptance.json": b'{"passed":true}'}
    golden = random_golden(contract)
    models = dict.fromkeys(("float32", "int8"), model_without_graph(encode_contract(contract)))
    answers = {"int8": dataclasses.replace(golden, actions=golden.actions + np.float32(0.5))}
    _write(path, contract, models=models, golden=golden, answers=answers, extras=extras, folder=folder)
    bundle = read_bundle(path)
    assert list(bundle.goldens) == ["float32", "int8"]
    np.testing.assert_array_equal(bundle.goldens["int8"].actions, answers["int8"].actions)
    np.testing.assert_array_equal(bundle.goldens["int8"].signals, golden.signals)
    assert path.is_dir() == folder
    assert repr(bundle.contract) == repr(contract)
    assert bundle.contract_hash == contract_hash(contract)
    assert dict(bundle.models) == models
    assert {name: bundle.members[name] for name in extras} == extras
    for field in dataclasses.fields(golden):
        expected, got = getattr(golden, field.name), getattr(bundle.golden, field.name)
        assert expected.dtype == got.dtype
        np.testing.assert_array_equal(expected, got)
        assert not got.flags.writeable


def test_same_content_and_key_give_the_same_bytes_whatever_the_order(tmp_path: Path) -> None:
    key = one_time_signing_key()
    model = model_without_graph(encode_contract(CONTRACT))
    for name, order in (("a", ("float32", "int8")), ("b", ("int8", "float32"))):
        answers = {other: random_golden(CONTRACT) for other in order if other != "float32"}
        _write(tmp_path / name, models=dict.fromkeys(order, model), answers=answers, signing_key=key)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_other_programs_can_unpack_it_into_its_folder_form(written: bytes, tmp_path: Path) -> None:
    archive = zipfile.ZipFile(io.BytesIO(written))
    assert archive.testzip() is None
    archive.extractall(tmp_path / "folder")
    (tmp_path / "policy.s2r").write_bytes(written)
    assert read_bundle(tmp_path / "folder").members == read_bundle(tmp_path / "policy.s2r").members
    with np.load(tmp_path / "folder" / "golden.npz", allow_pickle=False) as arrays:
        assert arrays["targets"].shape == (200, 5, 1)


def test_every_changed_byte_but_those_of_large_members_is_refused(written: bytes, tmp_path: Path) -> None:
    """Headers, contract, manifest, signature, directory: each byte in turn, with one random other value."""
    path = tmp_path / "policy.s2r"
    skipped: set[int] = set()
    for name in ("golden.npz", "policy.float32.onnx"):
        content = unpack(written)[name]
        start = written.index(content)
        skipped |= set(range(start, start + len(content)))
    rng = random.Random(0)
    for position in sorted(set(range(len(written))) - skipped):
        changed = bytearray(written)
        changed[position] ^= rng.randint(1, 255)
        path.write_bytes(changed)
        assert _refusal(path).endswith(ACTIONS), position


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_changed_bytes_are_refused(
    written: bytes, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "changed.s2r"
    changed = bytearray(written)
    for position in data.draw(st.sets(st.integers(0, len(written) - 1), min_size=1, max_size=3)):
        changed[position] ^= data.draw(st.integers(1, 255))
    path.write_bytes(changed)
    assert _refusal(path).endswith(ACTIONS)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_other_length_is_refused(
    written: bytes, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "length.s2r"
    length = data.draw(st.integers(0, len(written) - 1))
    path.write_bytes(written[:length])
    assert _refusal(path) == f"truncated: its {length} bytes have no end record; copy it again"
    path.write_bytes(data.draw(st.binary(max_size=4)) + written + data.draw(st.binary(min_size=1, max_size=40)))
    assert _refusal(path).endswith(ACTIONS)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_changed_byte_of_a_folder_is_refused(
    written: bytes, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    members = unpack(written)
    folder = tmp_path_factory.mktemp("folder")
    name = data.draw(st.sampled_from(sorted(members)))
    changed = bytearray(members[name])
    if data.draw(st.booleans()):
        changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del changed[data.draw(st.integers(0, len(changed) - 1)) :]
    for each, content in (members | {name: bytes(changed)}).items():
        (folder / each).write_bytes(content)
    assert _refusal(folder).endswith("copy or export it again")


@pytest.mark.parametrize(
    "name", ["contract.json", "golden.npz", "manifest.json", "manifest.sig", "policy.float32.onnx"]
)
def test_missing_and_renamed_files_are_named(written: bytes, tmp_path: Path, name: str) -> None:
    zipfile.ZipFile(io.BytesIO(written)).extractall(tmp_path)
    (tmp_path / name).rename(tmp_path / f"{name}.bak")
    told = _refusal(tmp_path)
    assert told.endswith("copy or export it again")
    assert name in told or "policy.<precision>.onnx" in told


def test_additional_entries_of_a_folder_are_named(written: bytes, tmp_path: Path) -> None:
    zipfile.ZipFile(io.BytesIO(written)).extractall(tmp_path)
    (tmp_path / "acceptance.json").write_bytes(b"{}")
    assert "got ['acceptance.json', 'contract.json'" in _refusal(tmp_path)
    (tmp_path / "acceptance.json").rename(tmp_path / ".DS_Store")
    assert _refusal(tmp_path) == "unexpected file '.DS_Store'; remove it or copy or export it again"
    (tmp_path / ".DS_Store").unlink()
    (tmp_path / "golden.npz").rename(tmp_path.parent / "elsewhere.npz")
    (tmp_path / "golden.npz").symlink_to(tmp_path.parent / "elsewhere.npz")
    assert _refusal(tmp_path).startswith("unexpected 'golden.npz', which is not a plain file")


def test_zip_files_that_others_would_accept_are_refused(written: bytes, tmp_path: Path) -> None:
    path = tmp_path / "policy.s2r"
    members = unpack(written)
    for compression, comment, extra in (
        (zipfile.ZIP_DEFLATED, b"", {}),
        (zipfile.ZIP_STORED, b"hello", {}),
        (zipfile.ZIP_STORED, b"", {"../../escaped": b"x"}),
        (zipfile.ZIP_STORED, b"", {}),
    ):
        with zipfile.ZipFile(path, "w", compression) as archive:
            archive.comment = comment
            for name, content in (members | extra).items():
                archive.writestr(name, content)
        assert _refusal(path).endswith("copy or export it again" if not comment else ACTIONS)
    path.write_bytes(pack(members | {"../../escaped": b"x"}))
    assert _refusal(path) == "unexpected file '../../escaped'; remove it or copy or export it again"
    # A second file of the same name, where one reader would take the first and another the last.
    body = written.index(b"PK\x01\x02")
    first = written[: written.index(b"PK\x03\x04", 4)]
    path.write_bytes(written[:body] + first + written[body:])
    assert _refusal(path).startswith("altered: ")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["policy.s2r"]


def test_file_too_large_for_a_policy_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.s2r"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert _refusal(path).startswith(f"expected at most {MAX_BYTES} bytes, got {MAX_BYTES + 1}")


def test_paths_without_a_bundle_are_explained(tmp_path: Path) -> None:
    assert _refusal(tmp_path / "none.s2r").startswith("cannot be read (No such file or directory); give the path")
    assert _refusal(tmp_path).startswith("is not a policy bundle: has no manifest.json; give the folder or file")
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    (tmp_path / "run" / "checkpoint" / "state.json").write_text("{}")
    for trained in (tmp_path / "run", tmp_path / "run" / "checkpoint"):
        assert _refusal(trained).endswith("not a policy bundle; make a bundle of it first: sim2real export")
    (tmp_path / "text.s2r").write_text("a policy, I hope")
    assert _refusal(tmp_path / "text.s2r").startswith("expected a zip file, got something else; give the path")
    os.mkfifo(tmp_path / "pipe.s2r")
    assert _refusal(tmp_path / "pipe.s2r").startswith("expected a file or a folder, got something else")


def test_bundle_of_a_newer_schema_says_which_toolkit_reads_it(written: bytes, tmp_path: Path) -> None:
    path = tmp_path / "policy.s2r"
    # What a newer bundle looks like inside is unknown, so an unknown member must not be what is complained about.
    path.write_bytes(_signed(unpack(written) | {"policy.engine": b"x"}, schema_version=2))
    told = f"expected schema version 1, which sim2real {__version__} reads, got 2; install sim2real '9.9.9' or export"
    assert _refusal(path).startswith(f"manifest.json: {told}")


def _replaced_in_golden(name: str, array: Any) -> dict[str, bytes]:
    golden = random_golden(CONTRACT)
    arrays = {field.name: getattr(golden, field.name) for field in dataclasses.fields(golden)}
    return {
        "golden.npz": write_npz({key: value for key, value in (arrays | {name: array}).items() if value is not None})
    }


CANONICAL = encode_contract(CONTRACT)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (_replaced_in_golden("signals", None), "golden.npz: expected the arrays ['actions', 'commands', 'episode_st"),
        (_replaced_in_golden("rewards", np.zeros(200)), "golden.npz: expected the arrays ['actions', 'commands', 'epi"),
        (_replaced_in_golden("signals", np.full((200, 3), np.nan)), "golden.npz: signals[0, 0]: expected a finite nu"),
        (_replaced_in_golden("actions", np.zeros((199, 1), np.float32)), "golden.npz: actions: expected float32 of sh"),
        (_replaced_in_golden("episode_start", np.ones(199, bool)), "golden.npz: episode_start: expected at least 200"),
        (_replaced_in_golden("episode_start", np.bool_(True)), "golden.npz: episode_start: expected at least 200 st"),
        (_replaced_in_golden("episode_start", np.zeros(200, bool)), "golden.npz: episode_start[0]: expected True, go"),
        (
            _replaced_in_golden("episode_start", np.ones(200)),
            "golden.npz: episode_start: expected bool of shape (200,)",
        ),
        ({"golden.npz": b"PK"}, "golden.npz: truncated: its 2 bytes have no end record"),
        ({"golden.npz": pack({"signals.npy": b"\x93NUMPY"})}, "golden.npz: signals: expected an array of float64, fl"),
        ({"contract.json": CANONICAL + b" "}, "contract.json: expected canonical JSON, as encode_contract writes it"),
        ({"contract.json": CANONICAL.replace(b"-1.0", b"-10e-1")}, "contract.json: expected canonical JSON"),
        ({"contract.json": CANONICAL.replace(b'"kp":0.0', b'"kp":-2.0')}, "contract.json: contract.joints[0].kp: exp"),
        ({"policy.float32.onnx": b"\xff"}, "policy.float32.onnx: expected an ONNX file, got something else"),
        (
            {"policy.float32.onnx": b""},
            "policy.float32.onnx: expected contract.json in its metadata (sim2real.contract",
        ),
        ({"calibration.npz": b""}, "calibration.npz: truncated"),
        ({"acceptance.json": b"{"}, "acceptance.json: "),
    ],
)
def test_wrong_member_is_named_even_if_signed(
    written: bytes, tmp_path: Path, changes: dict[str, bytes], told: str
) -> None:
    path = tmp_path / "policy.s2r"
    path.write_bytes(_signed(unpack(written) | changes))
    assert _refusal(path).startswith(told)
    assert _refusal(path).endswith(ACTIONS)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"contract_sha256": "0" * 64}, "contract.json: its SHA-256 is not contract_sha256 of manifest.json"),
        ({"members": ()}, "expected the files [], got ['contract.json', 'golden.npz', 'policy.float32.onnx']"),
        ({"members": None}, "manifest.json: Expected `array`, got `null` - at `$.members`"),
    ],
)
def test_wrong_manifest_is_explained_even_if_signed(
    written: bytes, tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    path = tmp_path / "policy.s2r"
    path.write_bytes(_signed(unpack(written), **changes))
    assert _refusal(path).startswith(told)


def test_unknown_precision_or_extra_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"unexpected file 'policy\.int3\.onnx'"):
        _write(tmp_path / "policy.s2r", models={"int3": model_without_graph(CANONICAL)})
    with pytest.raises(BundleError, match=r"golden\.npz: expected the arrays \[.*'actions\.int8'.*got"):
        _write(tmp_path / "policy.s2r", models={"int8": model_without_graph(CANONICAL)})
    with pytest.raises(
        BundleError, match=r"has no policy\.<precision>\.onnx \(float32, float16, bfloat16, int8, fp8\)"
    ):
        _write(tmp_path / "policy.s2r", models={})
    with pytest.raises(BundleError, match=r"expected extras named .*, got contract\.json"):
        _write(tmp_path / "policy.s2r", extras={"contract.json": b"{}"})
    assert list(tmp_path.iterdir()) == []


def test_failed_write_keeps_the_bundle_that_was_there(tmp_path: Path) -> None:
    for folder in (False, True):
        path = tmp_path / str(folder)
        before = _write(path, folder=folder)
        with pytest.raises(BundleError, match="expected at least 200 steps, got 5"):
            _write(path, golden=random_golden(CONTRACT, steps=5), folder=folder)
        assert read_bundle(path).members == before.members


def test_folder_of_something_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(BundleError, match="exists and is not a bundle folder; choose another --out"):
        _write(tmp_path)
    with pytest.raises(BundleError, match="exists and is not a bundle folder; choose another --out"):
        _write(tmp_path / "thesis.tex", folder=True)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


def test_unwritable_place_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match="cannot be written"):
        _write(tmp_path / "file" / "policy.s2r")


WRITER = """
import sys
from pathlib import Path
from tests.core.test_bundle import CONTRACT, _write, with_field
other = with_field(CONTRACT, "action.scale", (1.25,))
_write(Path(sys.argv[1]))
print("ready", flush=True)
while True:
    _write(Path(sys.argv[1]), other)
    _write(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("delay_ms", [1, 7, 13, 29])
def test_killed_writer_leaves_a_whole_bundle(tmp_path: Path, delay_ms: int) -> None:
    path = tmp_path / "policy.s2r"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(delay_ms / 1000)
        writer.send_signal(signal.SIGKILL)
    scales = {read_bundle(path).contract.action.scale}
    assert scales <= {CONTRACT.action.scale, with_field(CONTRACT, "action.scale", (1.25,)).action.scale}
