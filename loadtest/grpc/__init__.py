"""What gRPC costs: CPU a message of the router's port against a bare proxy, and what it does to streams beside it."""
