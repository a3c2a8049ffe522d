"""What a request's output must keep to, in any of the spellings that clients have for it.

Knows the fields. Must not know how grammars are compiled or followed.
"""

from collections.abc import Callable, Iterator

from engine.grammar import Grammar, GrammarError
from engine.server.errors import bad_request
from engine.server.openai import GenerationFields, ResponseFormat, StructuredOutputs

_Wish = tuple[str, Callable[[], Grammar]]


def grammar_of(request: GenerationFields) -> tuple[str, Grammar] | None:
    """The field that asks, and its grammar. Raises ApiError (400) when two ask, or one cannot be followed."""
    wishes = list(_wishes(request))
    if len(wishes) > 1:
        names = " and ".join(name for name, _ in wishes)
        raise bad_request(f"{names} contradict each other; give one of them", wishes[1][0])
    if not wishes:
        return None
    name, make = wishes[0]
    try:
        return name, make()
    except GrammarError as error:
        raise bad_request(f"{name}: {error}", name) from None


def _wishes(request: GenerationFields) -> Iterator[_Wish]:
    if request.response_format is not None:
        yield from _of_format(request.response_format)
    if request.structured_outputs is not None:
        yield from _of_structured(request.structured_outputs)
    spelled = StructuredOutputs(
        json=request.guided_json,
        regex=request.guided_regex,
        choice=request.guided_choice,
        grammar=request.guided_grammar,
    )
    for name, make in _of_structured(spelled):
        yield name.replace("structured_outputs.", "guided_"), make


def _of_format(asked: ResponseFormat) -> Iterator[_Wish]:
    if asked.type == "json_object":
        yield "response_format", Grammar.json_object
    if asked.type == "json_schema":
        schema = None if asked.json_schema is None else asked.json_schema.schema
        if schema is None:
            name = "response_format.json_schema" + ("" if asked.json_schema is None else ".schema")
            raise bad_request(f"{name} is missing", name)
        yield "response_format.json_schema.schema", lambda: Grammar.json_schema(schema)


def _of_structured(asked: StructuredOutputs) -> Iterator[_Wish]:
    if (schema := asked.json) is not None:
        yield "structured_outputs.json", lambda: Grammar.json_schema(schema)
    if (pattern := asked.regex) is not None:
        yield "structured_outputs.regex", lambda: Grammar.regex(pattern)
    if (texts := asked.choice) is not None:
        yield "structured_outputs.choice", lambda: Grammar.choice(texts)
    if (grammar := asked.grammar) is not None:
        yield "structured_outputs.grammar", lambda: Grammar.lark(grammar)
    if asked.json_object:
        yield "structured_outputs.json_object", Grammar.json_object
