import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from loadtest.peers.ask import ask
from loadtest.peers.process import free_port


class Echo(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(b"got " + self.path.encode())

    def do_POST(self) -> None:
        self.answer(self.rfile.read(int(self.headers["content-length"])) + self.headers["x-a"].encode())

    def answer(self, body: bytes) -> None:
        self.send_response(200 if self.path != "/no" else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_an_answer_is_status_and_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with HTTPServer(("127.0.0.1", 0), Echo) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            assert ask(server.server_port, "/a") == (200, b"got /a")
            assert ask(server.server_port, "/no") == (404, b"got /no")
            assert ask(server.server_port, "/", b"body", {"x-a": "1"}) == (200, b"body1")
        finally:
            server.shutdown()
            thread.join()


def test_nobody_there_is_an_os_error() -> None:
    with pytest.raises(OSError):  # noqa: PT011  # which one is the system's choice
        ask(free_port(), "/")


def greet(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        connection.sendall(b"hello\r\n\r\n")


def test_what_is_no_http_is_an_os_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=greet, args=(listener,))
        thread.start()
        with pytest.raises(OSError, match=r"no HTTP answer|reset"):
            ask(listener.getsockname()[1], "/")
        thread.join()
