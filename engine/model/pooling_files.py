"""How a model's folder wants its hidden states pooled, as Sentence Transformers writes it down.

Knows one file's name and keys. Must not know how pooling is done.
"""

from pathlib import Path

from engine.model.fields import ModelError, read_json_object
from engine.sampling import Pooling

_FILE = Path("1_Pooling", "config.json")
_MODES = {"pooling_mode_mean_tokens": Pooling.MEAN, "pooling_mode_lasttoken": Pooling.LAST}
_PREFIX = "pooling_mode_"


def read_pooling(path: Path) -> Pooling | None:
    """None where the model says nothing of it. Raises ModelError for a mode that is not supported."""
    file = path / _FILE
    if not file.is_file():
        return None
    asked = [name for name, value in read_json_object(file).items() if name.startswith(_PREFIX) and value is True]
    if len(asked) != 1 or asked[0] not in _MODES:
        supported = " or ".join(_MODES)
        raise ModelError(f"{file}: {' + '.join(asked) or 'no mode'} is not supported (only {supported})")
    return _MODES[asked[0]]
