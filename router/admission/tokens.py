"""What a request takes of a pool, in tokens: uncached prompt and output, expected and actual. Knows leases;
knows no order."""

from router.admission.flows import Flow
from router.core import Demand, Lease

# Of a flow that no answer is known of.
DEFAULT_OUTPUT_TOKENS = 128.0
# A decision without a place must not be for nothing.
MIN_TOKENS = 1.0
_NEWEST_SHARE = 0.1


def expected_tokens(lease: Lease, flow: Flow) -> float:
    """What the decision leaves to be computed, and as long an answer as this flow's are, or as the request allows."""
    return lease.decision.uncached_tokens + _output_tokens(lease.demand, flow) + MIN_TOKENS


def queued_tokens(demand: Demand, flow: Flow) -> float:
    """The same before there is a decision: as if nothing of the prompt were cached."""
    return demand.prompt.num_tokens + _output_tokens(demand, flow) + MIN_TOKENS


def _output_tokens(demand: Demand, flow: Flow) -> float:
    output = DEFAULT_OUTPUT_TOKENS if flow.mean_output_tokens is None else flow.mean_output_tokens
    most = demand.request.max_tokens
    return output if most is None or most > output else most


def actual_tokens(lease: Lease) -> float:
    """As the replica said. A request that ended before its first byte took nothing; where one that began says nothing,
    what was expected stands."""
    if lease.output_tokens is None:
        return lease.charged_tokens if lease.has_started else 0.0
    return lease.decision.uncached_tokens + lease.output_tokens + MIN_TOKENS


def learn_output(flow: Flow, lease: Lease) -> None:
    """How long this flow's answers are."""
    if lease.output_tokens is not None:
        known, newest = flow.mean_output_tokens, float(lease.output_tokens)
        flow.mean_output_tokens = newest if known is None else known + _NEWEST_SHARE * (newest - known)
