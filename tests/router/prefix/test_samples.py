"""The sample texts: that they hold what shortcuts must prove themselves on."""

from itertools import product

from router.prefix import samples


def test_every_run_of_four_kinds_of_characters_is_there() -> None:
    text = "\0".join(samples.runs_of_kinds())
    assert all("".join(run) in text for run in product(samples._KINDS, repeat=4))


def test_the_random_words_are_always_the_same() -> None:
    once, again = list(samples.random_words(3)), list(samples.random_words(3))
    assert once == again
    assert len(set(once)) == 3
    assert max(len(word) for word in once[0].split()) > 30
