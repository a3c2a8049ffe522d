"""Requests as clients write them, decoded."""

import json
from typing import Any

from engine.server.fields import decode
from engine.server.openai import ChatRequest, CompletionRequest
from engine.server.options import Limits

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "m", "prompt": "hi"}
EOS = frozenset({2})
LIMITS = Limits(max_model_len=100, vocab_size=1000, max_num_seqs=4, eos_token_ids=EOS)


def chat(**fields: Any) -> ChatRequest:
    return decode(json.dumps(CHAT | fields).encode(), ChatRequest)


def completion(**fields: Any) -> CompletionRequest:
    return decode(json.dumps(COMPLETION | fields).encode(), CompletionRequest)
