import sys
from pathlib import Path

import pytest

from loadtest.errors import LoadError
from loadtest.peers import install
from loadtest.peers.install import compile_c, program_of, reason_in
from loadtest.peers.launch import Peer
from loadtest.peers.process import Unavailable


def test_a_program_of_the_system_is_found() -> None:
    assert program_of(Peer(about="", program="sh", arguments=lambda _: []), Path("/nosuch")).endswith("/sh")
    ours = Peer(about="", program=sys.executable, arguments=lambda _: [])
    assert program_of(ours, Path("/nosuch")) == sys.executable


def test_a_program_that_the_system_lacks_is_told_with_the_way_to_get_it() -> None:
    peer = Peer(about="", program="nosuch-router", hint="apt-get install nosuch", arguments=lambda _: [])
    with pytest.raises(Unavailable, match=r"nosuch-router is not installed \(apt-get install nosuch\)"):
        program_of(peer, Path("/nosuch"))


def test_what_pip_said_is_cut_to_the_line_that_tells() -> None:
    git = "  error: subprocess-exited-with-error\n   fatal: unable to access: no host\n  note: not pip's\n"
    assert reason_in(git) == "fatal: unable to access: no host"
    assert reason_in("a\nERROR: No matching distribution found for x\nb\n").startswith("ERROR: No matching")
    assert reason_in("  strange\n") == "strange"
    assert reason_in("") == "pip printed nothing"


@pytest.mark.slow
def test_a_package_that_cannot_be_had_is_told_and_tried_again(tmp_path: Path) -> None:
    missing = tmp_path / "nosuch-1.0-py3-none-any.whl"
    peer = Peer(about="", program="x", packages=(str(missing),), arguments=lambda _: [])
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"cannot be installed: .*nosuch"):
            program_of(peer, tmp_path / "scratch")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mock", "load"])
def test_the_c_programs_compile_once(tmp_path: Path, name: str) -> None:
    program = compile_c(name, tmp_path)
    built = program.stat().st_mtime_ns
    assert compile_c(name, tmp_path) == program
    assert program.stat().st_mtime_ns == built
    assert [file.name for file in tmp_path.iterdir()] == [program.name]


def test_a_fault_of_the_compiler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "_SOURCES", tmp_path)
    (tmp_path / "broken.c").write_text("int main(void) { return nothing; }")
    with pytest.raises(LoadError, match=r"broken\.c does not compile: .*"):
        compile_c("broken", tmp_path / "out")


def test_a_machine_without_a_compiler_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LoadError, match="needs a C compiler"):
        compile_c("mock", tmp_path)
