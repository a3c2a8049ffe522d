"""Replicas by the scheme of their URL: HTTP's pool for some, gRPC's for the others. Knows schemes; decides nothing
else."""

from dataclasses import dataclass

from router.core import Attempt
from router.ports import Exchange, Sink
from router.upstream.grpc.pool import GrpcUpstream
from router.upstream.http import HttpUpstream


@dataclass(eq=False, slots=True)
class SchemeUpstream:
    """`ports.Upstream` where some replicas are spoken to over gRPC."""

    http: HttpUpstream
    grpc: GrpcUpstream

    def open_now(self, attempt: Attempt, sink: Sink) -> Exchange | None:
        """See `ports.Upstream`."""
        return self._of(attempt).open_now(attempt, sink)

    async def open(self, attempt: Attempt, sink: Sink) -> Exchange:
        """See `ports.Upstream`."""
        return await self._of(attempt).open(attempt, sink)

    async def close(self) -> None:
        await self.http.close()
        await self.grpc.close()

    def sweep(self) -> None:
        """Close connections that idled for too long. Called about once a second."""
        self.http.sweep()
        self.grpc.sweep()

    def _of(self, attempt: Attempt) -> HttpUpstream | GrpcUpstream:
        return self.grpc if attempt.replica.spec.url.startswith("grpc") else self.http

    def __repr__(self) -> str:
        return f"<SchemeUpstream {self.http!r} {self.grpc!r}>"
