"""WHICH REPLICA? Filters, scorers and a picker make a policy; presets name the ready-made ones."""
