import msgspec

from loadtest.settings import RunSettings
from loadtest.wire import Message, Wire, wire

HISTORY = (Message("system", "be brief"), Message("user", "how are you"))


def test_a_chat_sends_its_messages_and_asks_for_usage() -> None:
    ask = Wire("m", "chat", is_streamed=True, ignore_eos=False).ask(HISTORY, 7)
    assert ask.path == "/v1/chat/completions"
    assert ask.num_words == 5
    assert msgspec.json.decode(ask.body) == {
        "model": "m",
        "max_tokens": 7,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "how are you"},
        ],
    }


def test_a_completion_sends_the_history_as_one_prompt() -> None:
    ask = Wire("m", "completions", is_streamed=False, ignore_eos=True).ask(HISTORY, 7, user="tenant-4")
    assert ask.path == "/v1/completions"
    assert msgspec.json.decode(ask.body) == {
        "model": "m",
        "max_tokens": 7,
        "stream": False,
        "prompt": "be brief\nhow are you",
        "ignore_eos": True,
        "user": "tenant-4",
    }


def test_the_settings_choose_the_wire() -> None:
    assert wire(RunSettings(endpoint="completions"), "m").ask((), 1).path == "/v1/completions"
