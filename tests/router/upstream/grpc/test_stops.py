"""Stop texts: never given out where the replica stopped at them, given out where it went on."""

from hypothesis import given
from hypothesis import strategies as st

from router.upstream.grpc.stops import Stops

PIECES = st.lists(st.text("ab.", max_size=4), max_size=12)
STOP_TEXTS = st.lists(st.text("ab.", min_size=1, max_size=4), max_size=3).map(tuple)


@given(PIECES, STOP_TEXTS)
def test_text_that_the_replica_did_not_stop_at_comes_out_whole(pieces: list[str], stops: tuple[str, ...]) -> None:
    text = Stops(stops)
    assert "".join([*(text.push(piece) for piece in pieces), text.end("", None)]) == "".join(pieces)


@given(PIECES, STOP_TEXTS.filter(bool), st.integers(0, 2))
def test_nothing_of_the_stop_comes_out(pieces: list[str], stops: tuple[str, ...], which: int) -> None:
    """As an engine does it: it ends with the piece in which a stop text is complete for the first time."""
    stop, said = stops[which % len(stops)], ""
    fed = []
    for piece in [*pieces, stop]:
        fed.append(piece)
        said += piece
        if stop in said:
            break
    text = Stops(stops)
    out = "".join(text.push(piece) for piece in fed) + text.end("", stop)
    assert out == said[: said.index(stop)]


def test_what_may_become_a_stop_is_held_until_it_is_clear() -> None:
    text = Stops(("</s>",))
    assert [text.push("a<"), text.push("/"), text.push("b")] == ["a", "", "</b"]


def test_a_stop_that_the_replica_went_on_behind_is_text() -> None:
    text = Stops(("stop",))
    assert [text.push("a stop"), text.push(" b"), text.end("", None)] == ["a ", "stop b", ""]
