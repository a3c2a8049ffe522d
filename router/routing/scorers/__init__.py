"""One scorer a file: its fields are its options, its docstring gives formula, unit and what a missing signal means."""
