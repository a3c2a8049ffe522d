"""The rules of the house, checked on the source text itself: layers, sizes, words, and what the repository may name."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOTS = {street: Path(street) for street in ("router", "engine", "loadtest")} | {"pointsman": Path("proto/pointsman")}
GENERATED = Path("proto/pointsman/v1")

# Each layer of the router imports only what stands before it, or its own; rooms never import rooms.
LAYERS = [
    {"core", "choice", "spec", "steps"},
    {
        "ports",
        "errors",
        "errand",
        "config",
        "forms",
        "plugins",
        "openai",
        "headers",
        "heads",
        "naming",
        "retelling",
        "retries",
        "store",
        "telemetry",
    },
    {"admission", "routing", "prefix", "replicas", "upstream"},
    {"proxy", "relay", "placement", "handover", "workers"},
    {"transports", "jobs"},
    {"commons"},
    {"app", "adapting", "backlog", "explaining", "learning", "listening", "outgoing", "pages", "serving", "tokenizing"},
    {"child", "processes", "supervisor", "company"},
    {"cli", "up", "engines", "chat", "admin", "policies", "keycommands", "batchcommands", "batchclient", "__main__"},
]
ROOMS = LAYERS[2]
RANKS = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
# What the streets may import of each other.
NEIGHBOURS = {"router": {"pointsman"}, "engine": {"pointsman"}, "loadtest": {"pointsman"}, "pointsman": set[str]()}
# Load tools that step the router's synchronous cores themselves; all else in `loadtest` speaks over the wire.
WITH_ROUTER_CORES = {Path(f"loadtest/{name}.py") for name in ("micro", "micro_caches", "decisions")}
ROUTER_CORES = {"core", "spec", "steps", "placement", "admission", "prefix", "replicas", "routing", "workers"}
# The simulator steps the engine's torch-free files as well, and what the router's composition root puts together.
SIMULATOR = Path("loadtest/simulator")
# The queue's load tests run it over a real Redis.
ADMISSION = Path("loadtest/admission")
# So do those of jobs, with the book of jobs.
JOBS = Path("loadtest/jobs")
# So does a benchmark of the engine's own Python.
ENGINE_STEPS = Path("loadtest/engine_steps.py")
SIMULATED = ROUTER_CORES | {"choice", "errors", "handover", "placement", "plugins", "ports", "retries", "telemetry"}
WITH_TORCH = (
    *("engine/runner.py", "engine/sampler.py", "engine/drawing.py", "engine/logits.py", "engine/pooling.py"),
    "engine/lora.py",
    "engine/model/",
    "loadtest/engine/ask_transformers.py",  # a peer's script: run by its interpreter, imported by nobody
)

MOST_FILE_LINES = 400
MOST_FUNCTION_LINES = 60
MOST_FOLDERS = 3
MOST_PROTOCOL_METHODS = 4
MOST_TYPE_IGNORES = 1
# `path` or `path:function` -> why it may be longer.
LONG: Mapping[str, str] = {}

FORBIDDEN_WORDS = {
    form for word in "worker backend endpoint pod manager helper util impl".split() for form in (word, word + "s")
}
# Spelled in pieces: this file is searched as well.
UNNAMEABLE = [
    "../" + "shared",
    "/" + "work/",
    "pypi" + ".org",
    "files.python" + "hosted.org",
    "registry.npm" + "js.org",
    "deb.debian" + ".org",
]
NEVER_TRACKED = set(
    ".git .venv __pycache__ .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist node_modules".split()
)


def files(root: Path) -> list[Path]:
    return [path for path in sorted(root.rglob("*.py")) if GENERATED not in path.parents]


SOURCES = {street: files(root) for street, root in ROOTS.items()}
SOURCE_FILES = [path for paths in SOURCES.values() for path in paths]
ALL_FILES = [*SOURCE_FILES, *files(Path("tests"))]


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def imported(module: ast.Module) -> set[str]:
    """Every module that is imported, also in functions and under TYPE_CHECKING."""
    found: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parent = "." * node.level + (node.module or "")
            found |= {parent} | {f"{parent}.{alias.name}" for alias in node.names}
    return found


def test_every_street_is_read() -> None:
    assert {Path(root, "__init__.py") for root in ROOTS.values()} <= set(SOURCE_FILES)
    assert Path("tests/test_house.py") in ALL_FILES


# layers


def misplaced(own: str, module: ast.Module) -> set[str]:
    """What a file of the router's layer `own` must not import of the router."""
    seen = {name.split(".")[1] for name in imported(module) if name.startswith("router.")} & set(RANKS)
    later = {name for name in seen if RANKS[name] > RANKS[own]}
    return later | (seen & ROOMS - {own} if own in ROOMS else set())


def test_every_file_of_the_router_has_a_layer() -> None:
    names = {path.relative_to("router").parts[0].removesuffix(".py") for path in SOURCES["router"]} - {"__init__"}
    assert names <= set(RANKS), f"without a layer: {names - set(RANKS)}"


def test_a_layer_imports_only_what_stands_before_it() -> None:
    own = {path: path.relative_to("router").parts[0].removesuffix(".py") for path in SOURCES["router"]}
    wrong = {str(path): found for path in own if own[path] in RANKS and (found := misplaced(own[path], tree(path)))}
    assert not wrong


def test_misplaced_imports_would_be_found() -> None:
    assert misplaced("errors", ast.parse("from router import relay")) == {"relay"}
    assert misplaced("routing", ast.parse("def f():\n    from router.prefix.index import BlockIndex")) == {"prefix"}
    assert not misplaced("routing", ast.parse("import router.routing.filters, router.core\nfrom router import errors"))


def test_streets_meet_only_in_the_contract() -> None:
    wrong = [
        f"{path} imports {name}"
        for street, paths in SOURCES.items()
        for path in paths
        for name in {name.split(".")[0] for name in imported(tree(path))} & set(ROOTS) - {street} - NEIGHBOURS[street]
        if (path, name) not in {(allowed, "router") for allowed in WITH_ROUTER_CORES}
        and not (SIMULATOR in path.parents and name in {"router", "engine"})
        and not ({ADMISSION, JOBS} & set(path.parents) and name == "router")
        and not (path == ENGINE_STEPS and name == "engine")
    ]
    assert not wrong


def test_load_tools_step_only_synchronous_cores() -> None:
    for path in WITH_ROUTER_CORES:
        rooms = {name.split(".")[1] for name in imported(tree(path)) if name.startswith("router.")}
        assert rooms
        assert rooms <= ROUTER_CORES, f"{path} imports {rooms - ROUTER_CORES}"


def test_load_tests_of_admission_know_the_queue_and_its_store_alone() -> None:
    names = {name for path in files(ADMISSION) for name in imported(tree(path)) if name.startswith("router.")}
    assert {name.split(".")[1] for name in names} <= {"admission", "core", "errors", "spec", "store"}


def test_load_tests_of_jobs_know_their_book_and_its_store_alone() -> None:
    names = {name for path in files(JOBS) for name in imported(tree(path)) if name.startswith("router.")}
    assert {".".join(name.split(".")[1:3]) for name in names} <= {"jobs.book", "jobs.states", "store.connection"} | {
        "store.embedded"
    }


def test_the_simulator_steps_synchronous_cores_without_tensors() -> None:
    names = {name for path in [*files(SIMULATOR), ENGINE_STEPS] for name in imported(tree(path))}
    assert {name.split(".")[1] for name in names if name.startswith("router.")} <= SIMULATED
    found = {name.replace(".", "/") + ".py" for name in names if name.startswith("engine.")}
    assert found
    assert not [name for name in found if name.startswith(WITH_TORCH)]


def test_imports_are_absolute() -> None:
    assert not [str(path) for path in ALL_FILES if any(name.startswith(".") for name in imported(tree(path)))]


def test_torch_is_imported_only_where_tensors_are() -> None:
    with_torch = [str(path) for path in SOURCE_FILES if "torch" in {n.split(".")[0] for n in imported(tree(path))}]
    assert with_torch
    assert not [path for path in with_torch if not path.startswith(WITH_TORCH)]


def test_protocols_are_doors_of_the_router_and_narrow() -> None:
    protocols = [
        (path, node)
        for path in SOURCE_FILES
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef) and {"Protocol", "typing.Protocol"} & set(map(ast.unparse, node.bases))
    ]
    assert {path for path, _ in protocols} == {Path("router/ports.py")}
    for _, node in protocols:
        methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        assert len(methods) <= MOST_PROTOCOL_METHODS, node.name


# sizes


def sizes() -> dict[str, int]:
    """Lines of each file and function that is too long, by its place."""
    found: dict[str, int] = {}
    for path in ALL_FILES:
        if (num_lines := len(path.read_text().splitlines())) > MOST_FILE_LINES:
            found[str(path)] = num_lines
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if num_lines > MOST_FUNCTION_LINES:
                    found[f"{path}:{node.name}"] = num_lines
    return found


def test_a_file_is_one_idea_and_a_function_one_screen() -> None:
    assert {place: num_lines for place, num_lines in sizes().items() if place not in LONG} == {}


def test_every_longer_one_has_a_reason_and_is_still_long() -> None:
    assert set(LONG) <= set(sizes())
    assert all(len(reason) > 10 for reason in LONG.values())


def test_a_module_opens_with_what_it_knows() -> None:
    opened = {path: ast.get_docstring(tree(path)) or not path.read_text().strip() for path in SOURCE_FILES}
    assert not [str(path) for path, is_open in opened.items() if not is_open]
    assert not [str(path) for path in SOURCE_FILES if not path.read_text().strip() and path.name != "__init__.py"]


def test_folders_are_three_deep_at_most() -> None:
    depths = {path: len(path.relative_to(root).parts) - 1 for street, root in ROOTS.items() for path in SOURCES[street]}
    assert not [str(path) for path, depth in depths.items() if depth > MOST_FOLDERS]


# words


def ignores(text: str) -> list[str]:
    """Comments that switch the type checker off."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = [token.string for token in tokens if token.type == tokenize.COMMENT]
    return [comment for comment in found if re.search(r"type:\s*ignore", comment)]


def test_an_ignored_type_error_is_named() -> None:
    named = re.compile(r"type: ignore\[[a-z-]+(, ?[a-z-]+)*\]")
    assert not [
        f"{path} {found}" for path in ALL_FILES for found in ignores(path.read_text()) if not named.search(found)
    ]


def test_ignored_type_errors_do_not_grow() -> None:
    found = [f"{path} {comment}" for path in SOURCE_FILES for comment in ignores(path.read_text())]
    assert len(found) <= MOST_TYPE_IGNORES, found


def dropped_tasks(module: ast.Module) -> list[int]:
    """Lines that start a task and drop it. A group holds its own; the loop does not."""
    groups = {
        ast.unparse(item.optional_vars)
        for node in ast.walk(module)
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if item.optional_vars is not None and ast.unparse(item.context_expr).endswith("TaskGroup()")
    }
    calls = [node.value for node in ast.walk(module) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    return [
        call.lineno
        for call in calls
        if ast.unparse(call.func).endswith(("create_task", "ensure_future", "run_coroutine_threadsafe"))
        and ast.unparse(call.func).removesuffix(".create_task") not in groups
    ]


def test_every_task_has_an_owner() -> None:
    assert not [f"{path}:{line}" for path in SOURCE_FILES for line in dropped_tasks(tree(path))]


def test_a_dropped_task_would_be_found() -> None:
    kept = "async def f():\n    async with asyncio.TaskGroup() as tasks:\n        tasks.create_task(g())\n"
    assert not dropped_tasks(ast.parse(kept + "    t = asyncio.create_task(g())"))
    assert dropped_tasks(ast.parse(kept + "    asyncio.create_task(g())")) == [4]


def test_nothing_is_left_to_be_done() -> None:
    left = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    assert not [str(path) for path in ALL_FILES if left.search(path.read_text())]


def forbidden_names(path: Path, module: ast.Module) -> set[str]:
    """Names of the file, its classes and functions that use another word for a thing, or say nothing."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    names = {path.stem} | {node.name for node in ast.walk(module) if isinstance(node, kinds)}
    return {name for name in names if {word.lower() for word in _WORD.findall(name)} & FORBIDDEN_WORDS}


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def test_one_word_stands_for_one_thing() -> None:
    assert not {str(path): found for path in SOURCE_FILES if (found := forbidden_names(path, tree(path)))}


def test_a_forbidden_name_would_be_found() -> None:
    module = ast.parse("class PodIPManager: ...\ndef list_backends(): ...\ndef podium(): ...")
    assert forbidden_names(Path("router/utils.py"), module) == {"PodIPManager", "list_backends", "utils"}


# what the repository may name


def texts() -> Iterator[tuple[Path, str]]:
    for path in sorted(Path().rglob("*")):
        if path.is_file() and not NEVER_TRACKED & set(path.parts):
            try:
                yield path, path.read_text()
            except UnicodeDecodeError:
                continue


def test_the_repository_stands_on_its_own() -> None:
    """It names no package index and no path of the machine it was written on."""
    assert not [f"{path} names {word}" for path, text in texts() for word in UNNAMEABLE if word in text]
