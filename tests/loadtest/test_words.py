from loadtest.words import WORDS


def test_one_byte_picks_one_word() -> None:
    assert len(WORDS) == 256
    assert len(set(WORDS)) == 256
    assert all(word.isascii() and word.isalpha() for word in WORDS)
