"""What router processes share beyond one host: Redis, its names, and the breaker round it."""
