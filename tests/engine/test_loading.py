import io

from engine.loading import LoadPhases, progress_bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_phases_keep_their_order_and_their_times() -> None:
    phases = LoadPhases()
    for name in ("open", "weights"):
        with phases.timed(name):
            pass
    assert list(phases.took_s) == ["open", "weights"]
    assert min(phases.took_s.values()) >= 0


def test_a_bar_grows_and_is_gone_in_the_end() -> None:
    terminal = Terminal()
    draw = progress_bar(terminal)
    assert draw is not None
    draw(1, 2)
    assert terminal.getvalue() == "\rloading layers [###############               ] 1/2"
    draw(2, 2)
    assert terminal.getvalue().rsplit("\r", 2)[1].strip() == ""


def test_nothing_is_drawn_where_nobody_watches() -> None:
    assert progress_bar(io.StringIO()) is None
