"""A file of replicas: lines of the setting's form, or Prometheus' JSON with labels; read anew each time."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from router.replicas.discovery.file import MAX_BYTES, FileDiscovery
from router.spec import ReplicaSpec


def groups(*found: Any) -> str:
    return json.dumps(found)


async def test_each_line_is_a_replica(tmp_path: Path) -> None:
    path = tmp_path / "replicas"
    path.write_text("# ours\nhttp://a:1,role=prefill\n\n  grpc://b:2,kv=auto  \n")
    discovery = FileDiscovery(path)
    assert await discovery.list() == [ReplicaSpec("http://a:1", role="prefill"), ReplicaSpec("grpc://b:2", kv="auto")]
    path.write_text("http://c:3\n")
    assert await discovery.list() == [ReplicaSpec("http://c:3")], "it is read anew"
    path.write_text("")
    assert await discovery.list() == []
    assert repr(discovery) == f"<FileDiscovery {path}>"


async def test_labels_say_what_options_would_and_others_labels_are_others(tmp_path: Path) -> None:
    path = tmp_path / "replicas.json"
    ours = {
        "kv": "tcp://{host}:5557",
        "replay": "tcp://{host}:5558",
        "role": "decode",
        "tokenizer": "/m",
        "api_key": "k",
    }
    path.write_text(
        groups(
            {"targets": ["a:1", "10.0.0.2:8000"], "labels": {**ours, "job": "vllm, all of it", "model": "m"}},
            {"targets": ["[fd00::7]:8000"], "labels": {"llm-d.ai/role": "prefill", "kv": "tcp://{host}:5557"}},
            {"targets": ["b:2"], "labels": {"__scheme__": "grpc", "llm_d_ai_role": "prefill-decode"}},
            {"targets": ["https://c:3/llm"]},
            {"targets": ["d"], "labels": {"kv": "tcp://{host}:1", "role": "prefill", "llm-d.ai/role": "decode"}},
        )
    )
    assert await FileDiscovery(path).list() == [
        *(
            ReplicaSpec(
                f"http://{host}:{port}",
                api_key="k",
                tokenizer="/m",
                kv=f"tcp://{host}:5557",
                replay=f"tcp://{host}:5558",
                role="decode",
            )
            for host, port in (("a", 1), ("10.0.0.2", 8000))
        ),
        ReplicaSpec("http://[fd00::7]:8000", kv="tcp://[fd00::7]:5557", role="prefill"),
        ReplicaSpec("grpc://b:2"),
        ReplicaSpec("https://c:3/llm"),
        ReplicaSpec("http://d", kv="tcp://d:1", role="prefill"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("r", b"http://a\nhttp://b,role=both\n", "`role` must be prefill or decode, not `both`"),
        ("r", b"http://a\nhttp://a\n", "replica a is given twice"),
        ("r", b"file:///other\n", "must be one of http"),
        ("r", b"\xff\n", "can't decode"),
        ("r.json", b"[", "truncated"),
        ("r.json", b'{"targets": []}', "Expected `array`"),
        ("r.json", b'[{"labels": {}}]', "missing required field `targets`"),
        ("r.json", b'[{"targets": ["a:1"], "labels": {"kv": "tcp://a,b"}}]', "the label `kv` of a:1 holds a comma"),
        ("r.json", b'[{"targets": ["a:1"], "labels": {"role": "cook"}}]', "not `cook`"),
        ("r.json", b'[{"targets": ["a:x"]}]', "Port could not be cast"),
        ("r", b"#" * (MAX_BYTES + 1), "has more than"),
        ("r", None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_is_wrong_says_where(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        FileDiscovery(path).read()
    assert str(path) in str(caught.value)
