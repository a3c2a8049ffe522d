"""How long a batch takes by a profile. Knows batches and the step model; knows no clock."""

from engine.batch import Batch
from engine.prefixes import Medium
from loadtest.simulator.profile import Profile


def batch_s(profile: Profile, batch: Batch, block_size: int) -> float:
    """Seconds of this step, without adapters."""
    prefills = [(chunk.num_tokens, chunk.start) for chunk in batch.chunks if chunk.num_tokens > 1]
    context = sum(chunk.start for chunk in batch.chunks if chunk.num_tokens == 1)
    num_loaded = sum(copy.to is Medium.GPU for copy in batch.copies) * block_size
    return profile.step_s(prefills, len(batch.chunks) - len(prefills), context, num_loaded)
