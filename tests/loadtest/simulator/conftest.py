"""A trace and a scenario small enough to be searched in a test."""

import json
import random
from pathlib import Path

import pytest


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """150 requests in a minute that share one of five beginnings."""
    chance = random.Random(0)
    rows = [
        {
            "timestamp": number * 400,
            "input_length": 6 * 512 + chance.randrange(500),
            "output_length": chance.randrange(1, 60),
            "hash_ids": [*(10 * chance.randrange(5) + depth for depth in range(5)), 1000 + number],
        }
        for number in range(150)
    ]
    path = tmp_path / "small.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def scenario(tmp_path: Path, trace: Path) -> Path:
    path = tmp_path / "small.toml"
    lines = ('about = "a small one"', 'profile = "llama3-8b-h100-tp1"', "replicas = 2", "load = 4.0")
    path.write_text("\n".join((*lines, f'traces = ["{trace}"]')) + "\n")
    return path
