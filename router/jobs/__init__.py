"""Work that nobody waits on: asynchronous requests, batches, files, webhooks."""
