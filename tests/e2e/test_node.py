"""What runs in Node: OpenAI's own SDK against a whole Pointsman, and a page in a real browser that chats over a
WebSocket. Skipped, with the reason, where npm can install nothing, or no browser is there."""

import functools
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from loadtest.peers.process import free_ports
from tests.e2e.fleet import MODEL, ROOT, Fleet, running
from tests.proto.templates import CHATML

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPTS = Path(__file__).parent / "node"
PAGES = ROOT / "deploy" / "examples"
INSTALL = ["install", "--no-package-lock", "--no-audit", "--no-fund", "--loglevel=error"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ANSWER = "The capital of France is Paris."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts, and beside them what they import."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("Node.js and npm are not here")
    folder = tmp_path_factory.mktemp("node") / "scripts"
    shutil.copytree(SCRIPTS, folder)
    try:
        subprocess.run(
            [npm, *INSTALL], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=180, check=True
        )
    except subprocess.CalledProcessError as error:
        pytest.skip(f"npm can install nothing: {error.stderr.decode()[-300:]}")
    except subprocess.TimeoutExpired:
        pytest.skip("npm had installed nothing after 180 s")
    return folder


def node(folder: Path, *words: str, **environment: str) -> str:
    """What it prints. Fails with all of it where it fails."""
    done = subprocess.run(
        ["node", *words],
        cwd=folder,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@dataclass(frozen=True)
class Guarded:
    """A router that takes sockets of the pages of one origin only, before an engine that takes tools."""

    router: Fleet
    origin: str


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    template = tmp_path_factory.mktemp("template") / "chatml.jinja"
    template.write_text(CHATML)
    (port,) = free_ports(1)
    flags = ["--model", MODEL, "--threads", "1", "--port", str(port), "--chat-template", str(template)]
    serve = [sys.executable, "-m", "router", "serve", "--replica", f"http://127.0.0.1:{port}"]
    with (
        pages() as origin,
        running([sys.executable, "-m", "engine", *flags], until="ready"),
        running(serve, until='"message": "serving"', POINTSMAN_WEBSOCKET_ORIGIN=origin) as router,
    ):
        yield Guarded(router, origin)


def test_openais_node_sdk_chats_streams_calls_tools_follows_responses_and_runs_batches(
    folder: Path, fleet: Fleet, guarded: Guarded
) -> None:
    urls = {"BASE_URL": f"{fleet.url}/v1", "TOOLS_URL": f"{guarded.router.url}/v1"}
    said = node(folder, "--test", "--test-reporter=tap", "sdk.test.mjs", MODEL=MODEL, **urls)
    assert "# fail 0" in said
    assert "# pass 8" in said


@pytest.fixture(scope="module")
def browser() -> str:
    found = next((path for name in BROWSERS if (path := shutil.which(name)) is not None), None)
    if found is None:
        pytest.skip(f"no browser is here: none of {', '.join(BROWSERS)}")
    return found


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *words: Any) -> None:
        """To nobody."""


@contextmanager
def pages() -> Iterator[str]:
    """The origin of a web server that has the example pages."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(PAGES)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_page_in_a_browser_chats_over_a_websocket_where_its_origin_may(
    folder: Path, browser: str, guarded: Guarded
) -> None:
    router = guarded.router
    query = urlencode({"router": router.url.replace("http", "ws"), "model": MODEL})
    with pages() as elsewhere:
        scenes = (
            (guarded.origin, {"SAY": "What is the capital of France?|And of Italy?"}),
            (elsewhere, {"IS_REFUSED": "yes"}),
        )
        chatted, refused = (
            json.loads(node(folder, "page.mjs", BROWSER=browser, PAGE=f"{page}/chat.html?{query}", **scene))
            for page, scene in scenes
        )
    replica = router.replicas()[0]["id"]
    assert (chatted["faults"], chatted["errors"], chatted["state"]) == ([], [], f"answered by {replica}")
    assert chatted["answers"][0] == ANSWER
    assert "Rome" in chatted["answers"][1]
    assert (refused["faults"], refused["answers"], refused["state"]) == ([], [], "not connected")
