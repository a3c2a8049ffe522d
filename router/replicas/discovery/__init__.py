"""Where replicas are found: one class a source, each a `ports.Discovery`."""
