"""Who has it cached: from a request's input to KV block hashes, and from those to the replicas that hold them."""
