"""How one request wants its tokens chosen (Sampling) or its states pooled (Pooling), and what came of it: values only.

Knows what can be asked for. Must not know how tokens are chosen, tensors, text or HTTP.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose tokens and when to stop. `temperature` 0 is greedy; `top_k` None is the whole vocabulary.

    `eos_token_ids` is empty for a request that ignores the end of sequence. The draws depend on `seed` and on
    the position in the output only, so that the rest of the batch cannot change them. Penalties as vLLM has them:
    `repetition_penalty` counts the prompt's tokens too, the other two the output's only. `logit_bias` is added to
    the logits of its token ids. `num_top_logprobs` None asks for no logprobs, 0 for those of the chosen tokens only;
    `wants_prompt_logprobs` asks for the same of the prompt's tokens.
    """

    max_tokens: int
    seed: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0
    min_tokens: int = 0
    eos_token_ids: frozenset[int] = frozenset()
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    num_top_logprobs: int | None = None
    wants_prompt_logprobs: bool = False
    is_plain: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        # Asked of each row in each step, so worked out once: the likeliest token, and nothing else, is wanted.
        is_plain = self.temperature == 0 and not (
            self.is_penalised or self.logit_bias or self.min_tokens or self.num_top_logprobs is not None
        )
        object.__setattr__(self, "is_plain", is_plain)

    @property
    def is_penalised(self) -> bool:
        return (self.repetition_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """One position: the token that stands there and the likeliest ones (id, logprob), best first. Natural logarithms
    of the model's own probabilities, before temperature, penalties and cuts."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """What was chosen behind one chunk, with what was asked beside it. `logprobs` has one entry for each token;
    `prompt_logprobs` one for each token of the prompt that follows one of the chunk's."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()


class Pooling(Enum):
    """How the final hidden states of a prompt become one vector: their mean, or the last one."""

    MEAN = "mean"
    LAST = "last"


@dataclass(frozen=True, slots=True)
class Pooled:
    """What a chunk adds to its prompt's vector: an array [hidden], float32, of the sum or of the last state."""

    vector: Any


Result = Sampled | Pooled | int | None
"""What a step gave one chunk: a token id where nothing else was asked for; None where the prompt goes on."""
