"""Is our tokenizer the engine's? Asks its own /tokenize for the tokens of some texts, where it has one. Knows samples
and what differs; how to ask is handed in."""

from array import array
from collections.abc import Sequence

from router.core import Pool, Request, Surface
from router.prefix import samples
from router.prefix.engine_tokens import Ask, tokenize_body
from router.prefix.reader import Prompts

CHATS: Sequence[Sequence[dict[str, object]]] = (
    [{"role": "user", "content": "What is 2,000 + 13?\n\tNaïve café — 你好 🦊"}],
    [
        {"role": "user", "content": "Hello there"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": samples.TEXTS[0]},
    ],
)


async def find_fault(prompts: Prompts, pool: Pool, ask: Ask) -> str | None:
    """What differs, for operators; None where nothing does, or nobody can say."""
    for messages in CHATS:
        request = Request("probe", Surface.CHAT, pool.model, b"", 0.0, 0.0, messages=messages)
        theirs = await ask(tokenize_body(request))
        if theirs is None:
            return None
        ours = await prompts.read(request, pool, None)
        if ours.is_exact and not _is_same(prompts, pool, theirs, ours.num_tokens, ours.block_hashes):
            return f"its own /tokenize makes {len(theirs)} tokens of a chat of {ours.num_tokens}, or other ones"
    return None


def _is_same(prompts: Prompts, pool: Pool, theirs: "array[int]", num_tokens: int, hashes: Sequence[int]) -> bool:
    request = Request("probe", Surface.COMPLETIONS, pool.model, b"", 0.0, 0.0, prompt=theirs.tolist())
    prompt = prompts.read_now(request, pool, None)
    return prompt is not None and prompt.num_tokens == num_tokens and list(prompt.block_hashes) == list(hashes)
