"""What a run is made of. Knows the parts' values; builds and runs nothing."""

from dataclasses import dataclass, field

from loadtest.simulator.knowledge import Knowledge
from loadtest.simulator.pairs import Pairs
from loadtest.simulator.profile import Profile
from loadtest.simulator.sessions import Users
from loadtest.simulator.workload import Workload

# The first tenth of the requests warms the caches.
WARM_UP_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Lora:
    """Every replica's adapters: slots on the device and in host memory, bytes of each, and how much longer a step takes
    for each distinct one in it."""

    num_slots: int
    num_host_slots: int
    num_bytes: int
    step_share: float


@dataclass(frozen=True, slots=True)
class Setup:
    """Everything that a run's result depends on, beside the code. `load` divides the times of the workload, or
    is the number of users."""

    workload: Workload | Users
    profile: Profile
    num_replicas: int
    policy: str
    load: float
    seed: int = 0
    host_tokens: int = 0
    lora: Lora | None = None
    knowledge: Knowledge = field(default_factory=Knowledge)
    can_stretch: bool = True
    pairs: Pairs | None = None
