"""The cache of engines: whole, ours and for exactly this policy and device, or refused. About 2 s."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from sim2real.errors import BundleError, EngineError
from sim2real_edge.engine_cache import EngineCache, EngineKey, default_folder, l4t_release
from sim2real_edge.onnx_structure import structure_sha256
from tests.edge import policies

KEY = EngineKey(
    model_sha256="1" * 64, tensorrt="10.16.2.10", sm="11.0", gpu="NVIDIA Thor", l4t="R39 2.0", refittable=False
)
STRANGER = 12345
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@pytest.fixture
def cache(tmp_path: Path) -> EngineCache:
    return EngineCache(tmp_path / "engines")


@settings(max_examples=30)
@given(st.binary(max_size=300), st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_what_was_written_is_read(content: bytes, extra: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = EngineCache(Path(folder))
        cache.write("a.engine", KEY, content, extra)
        found = cache.read("a.engine", KEY)
        assert found is not None
        assert (found[0], msgspec.json.decode(found[1])) == (content, extra)


def test_what_is_not_there_is_none_and_makes_no_folder(cache: EngineCache) -> None:
    assert cache.read("a.engine", KEY) is None
    assert not cache.folder.exists()


def test_a_file_is_for_its_owner_alone(cache: EngineCache) -> None:
    path = cache.write("a.engine", KEY, b"plan")
    assert (path.stat().st_mode & 0o777, cache.folder.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [each.name for each in cache.folder.iterdir()] == ["a.engine"]


@settings(max_examples=60)
@given(st.data())
def test_a_file_that_is_cut_off_or_altered_anywhere_is_refused(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = EngineCache(Path(folder))
        path = cache.write("a.engine", KEY, b"plan" * 20, {"products": 3})
        whole = path.read_bytes()
        place = data.draw(st.integers(0, len(whole) - 1))
        if data.draw(st.booleans(), "cut"):
            path.write_bytes(whole[:place])
        else:
            path.write_bytes(
                whole[:place] + bytes([whole[place] ^ data.draw(st.integers(1, 255))]) + whole[place + 1 :]
            )
        with pytest.raises(EngineError, match=r"cut off or altered|this toolkit's format") as caught:
            cache.read("a.engine", KEY)
        assert "delete it, then: sim2real edge build" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"model_sha256": "2" * 64},
        {"tensorrt": "10.16.2.11"},
        {"sm": "8.7"},
        {"gpu": "NVIDIA Thor T4000"},
        {"l4t": "R39 3.0"},
        {"refittable": True},
        {"batch": 2},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_decides_what_is_built_is_in_the_key(cache: EngineCache, change: dict[str, object]) -> None:
    # Case 13.
    other = msgspec.structs.replace(KEY, **change)
    assert other.digest != KEY.digest
    cache.write("a.engine", KEY, b"plan")
    with pytest.raises(EngineError, match=r"expected an engine for .*, got one for "):
        cache.read("a.engine", other)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_may_write_to_is_refused(cache: EngineCache, mode: int) -> None:
    cache.write("a.engine", KEY, b"plan")
    cache.folder.chmod(mode)
    for attempt in (lambda: cache.read("a.engine", KEY), lambda: cache.write("b.engine", KEY, b"plan")):
        with pytest.raises(EngineError, match=rf"{cache.folder}: others may write to it.*run: chmod go-w"):
            attempt()
    assert not cache.path("b.engine").exists()


def test_a_folder_above_that_others_may_write_to_is_refused_unless_it_is_sticky(tmp_path: Path) -> None:
    cache = EngineCache(tmp_path / "open" / "engines")
    cache.write("a.engine", KEY, b"plan")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(EngineError, match="others may write to it"):
        cache.read("a.engine", KEY)
    (tmp_path / "open").chmod(0o1777)
    assert cache.read("a.engine", KEY) is not None


def test_a_file_that_others_may_write_to_and_a_link_are_refused(cache: EngineCache) -> None:
    path = cache.write("a.engine", KEY, b"plan")
    path.chmod(0o622)
    with pytest.raises(EngineError, match=rf"{path}: others may write to it"):
        cache.read("a.engine", KEY)
    path.chmod(0o600)
    cache.path("b.engine").symlink_to(path)
    with pytest.raises(EngineError, match="got a link to one"):
        cache.read("b.engine", KEY)


@AS_ROOT
@pytest.mark.parametrize("what", ["file", "folder", "link to the folder"])
def test_what_belongs_to_another_user_is_refused(cache: EngineCache, tmp_path: Path, what: str) -> None:
    path = cache.write("a.engine", KEY, b"plan")
    if what == "link to the folder":
        link = tmp_path / "link"
        link.symlink_to(cache.folder)
        os.lchown(link, STRANGER, STRANGER)
        cache = EngineCache(link)
    else:
        os.chown(path if what == "file" else cache.folder, STRANGER, STRANGER)
    with pytest.raises(EngineError, match=f"expected this user or root to own it, got user {STRANGER}"):
        cache.read("a.engine", KEY)


def test_the_default_folder_is_told_or_within_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SIM2REAL_ENGINES", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "sim2real" / "engines"
    monkeypatch.setenv("SIM2REAL_ENGINES", str(tmp_path / "here"))
    assert default_folder() == tmp_path / "here"


def test_the_release_of_a_jetson_is_read(tmp_path: Path) -> None:
    file = tmp_path / "nv_tegra_release"
    assert l4t_release(file) is None
    file.write_text("# R38 (release), REVISION: 4.0, GCID: 43443517, BOARD: generic, EABI: aarch64\n")
    assert l4t_release(file) == "R38 4.0"
    file.write_text("something else\n")
    with pytest.raises(EngineError, match=r"expected '# R<n> \(release\), REVISION: <m>"):
        l4t_release(file)


def test_policies_of_one_shape_have_one_structure_and_others_another() -> None:
    contract = policies.pendulum_contract()
    first = policies.mlp(contract).model()
    trained = policies.mlp(contract, seed=1).model()
    assert first != trained
    assert structure_sha256(first) == structure_sha256(trained)
    assert structure_sha256(policies.mlp(contract, hidden=16).model()) != structure_sha256(first)
    clipped = onnx.load_model_from_string(first)
    bound = next(each for each in clipped.graph.initializer if each.name == "high")
    bound.CopyFrom(numpy_helper.from_array(np.array(4.0, np.float32), "high"))
    # It is compiled into the engine: new weights would leave the old bound.
    assert structure_sha256(clipped.SerializeToString()) != structure_sha256(first)
    named = onnx.load_model_from_string(first)
    named.graph.node[0].op_type = "Add"
    assert structure_sha256(named.SerializeToString()) != structure_sha256(first)


def test_what_is_no_onnx_file_has_no_structure() -> None:
    with pytest.raises(BundleError, match="expected an ONNX file"):
        structure_sha256(policies.mlp(policies.pendulum_contract()).model()[:-3])
