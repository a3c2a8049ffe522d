"""The committed stubs are what the .proto files say today."""

import subprocess
import sys
from pathlib import Path

PROTO = Path(__file__).parents[2] / "proto"
STUBS = PROTO / "pointsman" / "v1"


def test_committed_stubs_are_those_that_protoc_makes_of_the_contracts(tmp_path: Path) -> None:
    sources = sorted(STUBS.glob("*.proto"))
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "grpc_python", "pyi")]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", *outputs, *map(str, sources)]
    subprocess.run(command, check=True, timeout=60)
    made = {file.name: file.read_text() for file in (tmp_path / "pointsman" / "v1").iterdir()}
    committed = {file.name: file.read_text() for file in STUBS.glob("*_pb2*.py*")}
    assert len(made) == 3 * len(sources)
    assert made == committed
