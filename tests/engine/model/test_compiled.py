import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.model.compiled import Function, compiled

again: Callable[..., Function | None] = compiled.__wrapped__


def compile_again() -> Function | None:
    return again("rows.c", "attend_rows", ())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pointsman" / "compiled"


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that the test writes."""
    path = tmp_path / "cc"
    monkeypatch.setenv("CC", str(path))
    return path


def write(compiler: Path, script: str) -> None:
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)


def test_without_a_compiler_there_is_no_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert compile_again() is None


def test_what_the_compiler_refuses_is_logged_and_leaves_nothing(
    compiler: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(compiler, "echo needs AVX-512 with VNNI >&2; exit 1")
    with caplog.at_level(logging.INFO):
        assert compile_again() is None
    assert "needs AVX-512 with VNNI" in caplog.text
    assert list(cache.iterdir()) == []


def test_a_library_that_cannot_be_loaded_is_no_function(compiler: Path) -> None:
    write(compiler, 'for last; do :; done; echo no library > "$last"')
    assert compile_again() is None


def test_it_is_compiled_once(cache: Path) -> None:
    if compile_again() is None:
        pytest.skip("there is no C compiler, or no AVX-512")
    (library,) = cache.iterdir()
    made_at = library.stat().st_mtime_ns
    assert compile_again() is not None
    assert [(path, path.stat().st_mtime_ns) for path in cache.iterdir()] == [(library, made_at)]


def test_what_the_functions_share_is_part_of_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.c").write_text('#include "shared.h"\nint one(void) { return NUMBER; }')
    monkeypatch.setattr("engine.model.compiled.__file__", str(tmp_path / "compiled.py"))
    for number in (1, 2):
        (tmp_path / "shared.h").write_text(f"#define NUMBER {number}")
        function = again("one.c", "one", ())
        if function is None:
            pytest.skip("there is no C compiler")
        assert function() == number
