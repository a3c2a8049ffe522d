"""How long an engine takes for a step. Knows a formula; knows no engine and nothing of how its numbers are found."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepModel:
    """What one step of an engine takes, in seconds: `base_s`, + for each new prompt token `token_s` and, for each token
    before it, `attention_s`; + for each sequence that decodes `sequence_s`, and for each token of its context
    `context_s`. How it is learned is in `replicas/speeds.py`."""

    base_s: float = 0.005
    token_s: float = 0.0005
    attention_s: float = 1e-8
    sequence_s: float = 1.5e-4
    context_s: float = 7.5e-7

    def prefill_s(self, num_new: int, num_tokens: int) -> float:
        """To compute the last `num_new` tokens of a prompt of `num_tokens`, without the steps' own time."""
        return num_new * (self.token_s + self.attention_s * (num_tokens - 0.5 * num_new))

    def decode_s(self, num_sequences: float, num_context_tokens: float) -> float:
        """A step that computes one token of each sequence."""
        return self.base_s + num_sequences * self.sequence_s + num_context_tokens * self.context_s
