import re

import pytest

from router.replicas.discovery.static import StaticDiscovery, parse_replica, parse_replicas
from router.spec import Merge, ReplicaSpec


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("http://a:8000", ReplicaSpec("http://a:8000")),
        ("http://a:8000/", ReplicaSpec("http://a:8000")),
        ("https://a.example", ReplicaSpec("https://a.example")),
        ("http://a:8000/llm/one/", ReplicaSpec("http://a:8000/llm/one")),
        ("HTTP://A:8000", ReplicaSpec("http://a:8000")),
        ("http://[::1]:8000", ReplicaSpec("http://[::1]:8000")),
        ("http://a:1,tokenizer=/m/t.json", ReplicaSpec("http://a:1", tokenizer="/m/t.json")),
        (
            "http://a:1,kv=tcp://a:5557,replay=tcp://a:5558",
            ReplicaSpec("http://a:1", kv="tcp://a:5557", replay="tcp://a:5558"),
        ),
        ("http://a:1,kv=auto", ReplicaSpec("http://a:1", kv="auto")),
        ("https://a/v1,models=m", ReplicaSpec("https://a/v1", models=("m",))),
        ("https://a/v1beta/openai/,models=a/b:c+d", ReplicaSpec("https://a/v1beta/openai", models=("a/b:c", "d"))),
        (" http://a:1 , api_key = k=v , tokenizer=t ", ReplicaSpec("http://a:1", api_key="k=v", tokenizer="t")),
    ],
)
def test_a_replica_is_read_from_text(text: str, spec: ReplicaSpec) -> None:
    assert parse_replica(text) == spec


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "needs a URL first"),
        ("a:8000", "the scheme is missing; did you mean `http://a:8000`?"),
        ("ftp://a", "must be one of http, https, grpc, grpcs"),
        ("http://", "the host is missing"),
        ("http://a:99999", "Port out of range"),
        ("http://a b:1", "no spaces"),
        ("http://me:secret@a", "not supported, give api_key=KEY"),
        ("http://a?x=1", "not supported"),
        ("http://a:8000/v1", "without /v1"),
        ("http://a,tokeniser=t", "unknown option `tokeniser`; did you mean `tokenizer`?"),
        ("http://a,shiny=yes", "unknown option `shiny`; there are tokenizer, api_key"),
        ("http://a,role=both", "`role` must be prefill or decode, not `both`"),
        ("grpc://a:1,role=prefill,bootstrap=1", "`bootstrap` is SGLang's, which is spoken to over http"),
        ("http://a,bootstrap=8998", "`bootstrap` goes with `role=prefill`"),
        ("http://a,rtt=soon", "`rtt` must be milliseconds from 0 to 10000, not `soon`"),
        ("http://a,rtt=-1", "`rtt` must be milliseconds from 0 to 10000, not `-1`"),
        ("http://a,rtt=nan", "`rtt` must be milliseconds from 0 to 10000, not `nan`"),
        ("http://a,role=prefill,bootstrap=0", "`bootstrap` must be a port from 1 to 65535, not `0`"),
        ("http://a,tokenizer", "option 1 is not key=value"),
        ("http://a,tokenizer=", "`tokenizer` has no value"),
        ("http://a,api_key=a,api_key=b", "`api_key` is given twice"),
        ("http://a,kv=a:5557", "`kv` must be auto or a URL of tcp, ipc, http, https, grpc, not `a:5557`"),
        ("http://a,replay=tcp://a:1", "`replay` goes with `kv=tcp://...`"),
        ("http://a,kv=tcp://a:1,replay=http://a:1", "`replay` must be a URL of tcp or ipc"),
        ("http://a,merge=0", "`merge` must be milliseconds up to 1000"),
        ("http://a,merge=5:1", "not `5:1`"),
        ("http://a,merge=soon", "not `soon`"),
        ("http://a,models=a++b", "`models` must be names with a + between them, not `a++b`"),
        ("http://a,models=a+a", "`models` must be names"),
        ("http://a,models=a,kv=auto", "an outside provider, which has no `kv`"),
        ("http://a,models=a,tokenizer=engine", "which has no `tokenizer=engine`"),
        ("grpc://a:1,models=a", "which has no gRPC"),
        ("http://a,ranks=0", "`ranks` must be a number from 1 to 1024, not `0`"),
        ("http://a:1,ranks=2", "`ranks` makes several of it"),
    ],
)
def test_a_wrong_text_is_refused_with_its_reason(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        parse_replica(text)


def test_data_parallel_ranks_are_replicas_of_their_own_whose_ports_follow_each_other() -> None:
    assert parse_replicas("http://a:8000,kv=tcp://a:5557,replay=tcp://a:6000,ranks=3") == [
        ReplicaSpec(f"http://a:{8000 + rank}", None, None, f"tcp://a:{5557 + rank}", f"tcp://a:{6000 + rank}", rank)
        for rank in range(3)
    ]
    assert [spec.kv for spec in parse_replicas("http://a:8000,kv=auto,ranks=2")] == ["auto", "auto"]
    with pytest.raises(ValueError, match="must end with a port"):
        parse_replicas("http://a,ranks=2")


def test_a_replica_may_have_a_role() -> None:
    assert parse_replica("http://a").role is None
    assert parse_replica("http://a,role=decode").role == "decode"
    assert parse_replica("grpc://a:1,role=prefill").role == "prefill"
    first = parse_replica("http://a,role=prefill,bootstrap=9000")
    assert (first.role, first.bootstrap_port) == ("prefill", 9000)


def test_requests_can_be_merged_for_a_time_and_up_to_a_number() -> None:
    assert parse_replica("http://a,merge=5").merge == Merge(0.005, 32)
    assert [spec.merge for spec in parse_replicas("http://a:1,merge=2.5:8,ranks=2")] == [Merge(0.0025, 8)] * 2
    assert parse_replica("http://a").merge is None


@pytest.mark.parametrize("text", ["http://me:secret@a,x=1", "http://a,api_key=some,secret"])
def test_no_error_shows_a_secret(text: str) -> None:
    with pytest.raises(ValueError, match="replica") as caught:
        parse_replica(text)
    assert "secret" not in str(caught.value)


async def test_the_list_is_what_was_given() -> None:
    specs = [ReplicaSpec("http://a:1"), ReplicaSpec("http://b:1")]
    assert await StaticDiscovery(specs).list() == specs


def test_a_replica_given_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="a:1 is given twice"):
        StaticDiscovery([ReplicaSpec("http://a:1"), ReplicaSpec("https://a:1")])
