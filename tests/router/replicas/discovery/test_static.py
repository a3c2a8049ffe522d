import pytest

from router.core import ReplicaSpec
from router.replicas.discovery.static import StaticDiscovery, parse_replica


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
        ("ftp://a", "must be http or https"),
        ("http://", "the host is missing"),
        ("http://a:99999", "Port out of range"),
        ("http://a b:1", "no spaces"),
        ("http://me:secret@a", "not supported, give api_key=KEY"),
        ("http://a?x=1", "not supported"),
        ("http://a:8000/v1", "without /v1"),
        ("http://a,tokeniser=t", "unknown option `tokeniser`; did you mean `tokenizer`?"),
        ("http://a,colour=red", "unknown option `colour`; there are tokenizer, api_key"),
        ("http://a,tokenizer", "option 1 is not key=value"),
        ("http://a,tokenizer=", "`tokenizer` has no value"),
        ("http://a,api_key=a,api_key=b", "`api_key` is given twice"),
    ],
)
def test_a_wrong_text_is_refused_with_its_reason(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("?", r"\?").replace("/", "/")):
        parse_replica(text)


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
