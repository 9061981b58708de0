"""Which code makes which result: a digest of the source that a stage can reach.

It knows Python's syntax and the names of the stages; it imports none of them.  The digest comes from the source itself,
so no list of files can go stale: from the stage's module on, every top-level definition that is named, directly or
through others, is followed across `harness` and `methods`.  Comments, docstrings, layout and definitions that the stage
never names do not count.  Names looked up at run time, as with ``getattr(module, name)``, cannot be seen.

Three decisions are made here on purpose:

* Trajectories do not depend on the loop and the cache of the decoder (`LOOP`): these may change how fast tokens
  come, never which, and the tests of parity hold them to that.  What chooses a token and what ends a response
  does count, though only the loop calls it.  Training decodes only to check itself (`DECODER`).
* Tables of components count entry by entry: of ``HEADS = {...}`` only what the method's recipe names.  So
  adding a method, a head or a relay leaves every other method's results alone.
* Tables of prompts (`SOURCE_TABLES`) count entry by entry too, so that a new or reworded benchmark leaves alone
  what asks none of its prompts.  Trajectories ask those they are made from; that they load the others, to refuse
  a prompt that is also evaluated, changes no response.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path

from methods.recipes import RECIPES

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("harness", "methods")

#: Settings reach a stage as values, which the rules record; the others say how it runs, not what it makes.
SURROUNDINGS = frozenset(
    {
        "harness.config",
        "harness.config_errors",
        "harness.launch",
        "harness.prompt_sections",
        "harness.provenance",
        "harness.sections",
        "harness.settings",
        "harness.stage",
    }
)
LOOP = frozenset({"harness.decode", "harness.cache"})
DECODER = LOOP | {"harness.accept", "harness.stops", "methods.runner"}

#: Stage -> (modules it starts from, modules that do not count).
STAGES: dict[str, tuple[tuple[str, ...], frozenset[str]]] = {
    "trajectories": (
        ("harness.train.trajectories", "harness.accept", "harness.stops"),
        SURROUNDINGS | LOOP | {"harness.preflight"},
    ),
    "train": (
        ("harness.train.__main__",),
        SURROUNDINGS | DECODER | {"harness.train.trajectories", "harness.train.prompts", "harness.preflight"},
    ),
    "import": (("harness.checkpoint",), SURROUNDINGS | LOOP),
    "decode": (("harness.run_suite",), SURROUNDINGS),
    "timing": (("harness.timing",), SURROUNDINGS),
    "throughput": (("harness.throughput",), SURROUNDINGS),
    **{
        name: ((f"harness.report.{name}",), SURROUNDINGS)
        for name in ("cells", "table1", "table2", "table3", "latency", "positions", "reproduction", "figures")
    },
}

#: Tables whose keys are names of components; RECIPES is told apart by the names of the recipes themselves.
COMPONENT_TABLES = frozenset({"FUSIONS", "BACKBONES", "HEADS", "RELAYS", "OBJECTIVES"})
#: Those whose keys are sources of prompts, or files of one ("gsm8k/test").
SOURCE_TABLES = frozenset({"SOURCES", "TRAINING"})
EVERY_SOURCE = "*"


def digest(
    stage: str, methods: Iterable[str] = (), root: Path = ROOT, *, sources: Iterable[str] = (EVERY_SOURCE,)
) -> str:
    """Hex digest of the code behind `stage`, with the components of `methods` and the prompts of `sources`, and of
    no others; all sources unless some are named.

    Raises KeyError for an unknown stage or method, FileNotFoundError if a module of the stage is missing.
    """
    return _digest(stage, tuple(sorted(methods)), root, tuple(sorted(sources)))


@lru_cache
def _digest(stage: str, methods: tuple[str, ...], root: Path, sources: tuple[str, ...]) -> str:
    modules, ignored = STAGES[stage]
    wanted = {*methods, *sources}
    for name in methods:
        recipe = RECIPES[name]
        wanted |= {recipe.fusion, recipe.backbone, recipe.head, recipe.relay, recipe.objective} - {None}
    hasher = hashlib.sha256()
    for owner, text in sorted(reach(modules, ignored, frozenset(wanted), root)):
        hasher.update(f"{owner}\0{text}\0".encode())
    return hasher.hexdigest()[:16]


def reach(
    modules: tuple[str, ...], ignored: frozenset[str], wanted: frozenset[str], root: Path
) -> set[tuple[str, str]]:
    """(module, normalised source) of every top-level statement that `modules` can reach."""
    found: set[tuple[str, str]] = set()
    load = cache(partial(_load, root=root))
    for module in modules:
        if load(module) is None:
            raise FileNotFoundError(f"there is no module {module} under {root}")
    todo: list[tuple[str, str | None]] = [(module, None) for module in modules]  # a name, or None for all of it
    seen: set[tuple[str, str | None]] = set()
    imported: set[str] = set()
    while todo:
        item = todo.pop()
        if item in seen or item[0] in ignored:
            continue
        seen.add(item)
        owner = load(item[0])
        if owner is None:
            continue
        if item[0] not in imported:  # whatever is wanted of a module, it is imported whole, and once
            imported.add(item[0])
            todo.extend((other, "") for other in (*owner.imports(root), *_parents(item[0])))
        for statement in owner.reached(item[1], entry=item[0] in modules):
            text, mentioned = owner.meaning(statement, wanted, root)
            found.add((item[0], text))
            todo.extend(mentioned)
        todo.extend(owner.passes_on(item[1], root))
    return found


@dataclass
class Module:
    """One source file, by top-level statement."""

    name: str
    is_package: bool
    body: list[ast.stmt]
    binders: dict[str, list[ast.stmt]] = field(default_factory=dict)  # name -> statements that bind it
    effects: list[ast.stmt] = field(default_factory=list)  # run on import, whoever imports
    meanings: dict[tuple[int, frozenset[str]], tuple[str, list]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bound = [_bound(statement) for statement in self.body]
        for statement, names in zip(self.body, bound, strict=True):
            for name in names:
                self.binders.setdefault(name, []).append(statement)
        for statement, names in zip(self.body, bound, strict=True):
            if not names or not isinstance(statement, _QUIET) or self._is_registered(statement):
                self.effects.append(statement)

    def _is_registered(self, statement: ast.stmt) -> bool:
        """Whether a decorator of the project stands on it: that may put it into a table, where no name leads to
        it."""
        named = {
            node.id
            for decorator in getattr(statement, "decorator_list", ())
            for node in ast.walk(decorator)
            if isinstance(node, ast.Name)
        }
        binders = [(name, binder) for name in named for binder in self.binders.get(name, [])]
        return any(
            not isinstance(binder, ast.Import | ast.ImportFrom) or any(self._targets(binder, name, ROOT))
            for name, binder in binders
        )

    def reached(self, name: str | None, entry: bool) -> Iterator[ast.stmt]:
        """Statements behind `name` (all for None) and those that importing the module runs; no imports."""
        chosen = self.body if name is None else [*self.binders.get(name, []), *self.effects]
        for statement in chosen:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                continue  # a bare import counts only through the names that are used; see `mentions`
            if entry or not _is_main_guard(statement):
                yield statement

    def passes_on(self, name: str | None, root: Path) -> Iterator[tuple[str, str | None]]:
        """Where `name` leads if this module has itself imported it."""
        for binder in self.binders.get(name or "", []):
            if isinstance(binder, ast.Import | ast.ImportFrom):
                yield from self._targets(binder, name, root)

    def imports(self, root: Path) -> Iterator[str]:
        """Project modules that importing this one imports; what they run on import counts, used or not."""
        for statement in self.body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                for module, _ in self._targets(statement, None, root):
                    yield module

    def meaning(self, statement: ast.stmt, wanted: frozenset[str], root: Path) -> tuple[str, list]:
        """Normalised source of `statement` and where its names lead; of tables, only the wanted entries."""
        table = _table_name(statement)
        key = (id(statement), wanted if table else frozenset())
        if key not in self.meanings:
            pruned = _pruned(table, statement, wanted) if table else statement
            self.meanings[key] = ast.unparse(pruned), list(self.mentions(pruned, root))
        return self.meanings[key]

    def mentions(self, statement: ast.AST, root: Path) -> Iterator[tuple[str, str | None]]:
        """Where the names in `statement` lead: into this module, or through its imports into others."""
        modules_by_alias: dict[str, str] = {}
        nodes = list(ast.walk(statement))
        for node in nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):  # an import inside a function
                yield from self._targets(node, None, root)
        for name in {node.id for node in nodes if isinstance(node, ast.Name)}:
            for binder in self.binders.get(name, []):
                if isinstance(binder, ast.Import | ast.ImportFrom):
                    for target in self._targets(binder, name, root):
                        if target[1] is None:
                            modules_by_alias[name] = target[0]
                        else:
                            yield target
                else:
                    yield self.name, name
        if modules_by_alias:
            yield from _attributes(nodes, modules_by_alias)

    def _targets(
        self, node: ast.Import | ast.ImportFrom, name: str | None, root: Path
    ) -> Iterator[tuple[str, str | None]]:
        """(module, symbol or None) that an import statement brings in; only under `name` if one is given."""
        base = "" if isinstance(node, ast.Import) else self._base(node)
        for alias in node.names:
            if name is not None and (alias.asname or alias.name.split(".")[0]) != name and alias.name != "*":
                continue
            if isinstance(node, ast.Import):
                target: tuple[str, str | None] = (alias.name, None)
            elif alias.name == "*" or _file(f"{base}.{alias.name}", root):
                target = (base if alias.name == "*" else f"{base}.{alias.name}", None)
            else:
                target = (base, alias.name)
            if target[0].split(".")[0] in PACKAGES:
                yield target

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        parts = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*parts, node.module] if node.module else parts)


#: Statements that only bind names when they run at import.
_QUIET = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.Assign,
    ast.AnnAssign,
    ast.Import,
    ast.ImportFrom,
)


def _attributes(nodes: list[ast.AST], aliases: dict[str, str]) -> Iterator[tuple[str, str | None]]:
    """``alias.name`` leads to that name; a module used in any other way counts whole."""
    dotted = set()
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases:
            dotted.add(id(node.value))
            yield aliases[node.value.id], node.attr
    for node in nodes:
        if isinstance(node, ast.Name) and node.id in aliases and id(node) not in dotted:
            yield aliases[node.id], None


def _bound(statement: ast.stmt) -> set[str]:
    """Names that a top-level statement binds in its module."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    names: set[str] = set()
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
    return names


def _table_name(statement: ast.stmt) -> str | None:
    """The name of a table of components or recipes, if the statement is one."""
    if isinstance(statement, ast.AnnAssign):
        target = statement.target
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    else:
        return None
    name = target.id if isinstance(target, ast.Name) else ""
    return name if name in COMPONENT_TABLES | SOURCE_TABLES or name == "RECIPES" else None


def _pruned(table: str, statement: ast.stmt, wanted: frozenset[str]) -> ast.stmt:
    """A table with only the wanted entries: string keys of a dict, or the calls of RECIPES by first
    argument."""
    statement = copy.deepcopy(statement)
    value = statement.value
    if table in SOURCE_TABLES and EVERY_SOURCE in wanted:
        return statement
    if table in COMPONENT_TABLES | SOURCE_TABLES and isinstance(value, ast.Dict):
        pairs = [pair for pair in zip(value.keys, value.values, strict=True) if _is_wanted(pair[0], wanted)]
        value.keys, value.values = [key for key, _ in pairs], [item for _, item in pairs]
    elif table == "RECIPES" and value is not None:
        for node in ast.walk(value):
            if isinstance(node, ast.Tuple | ast.List):
                node.elts = [item for item in node.elts if _is_wanted(item, wanted)]
    return statement


def _is_wanted(node: ast.expr | None, wanted: frozenset[str]) -> bool:
    """False only for plain entries of another name: a string key, or a call that starts with one."""
    if isinstance(node, ast.Call) and node.args:
        node = node.args[0]
    return not (
        isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.split("/")[0] not in wanted
    )


def _without_docstrings(tree: ast.Module) -> list[ast.stmt]:
    """The top-level statements; docstrings are taken out of everything that can have one."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or ([] if node is tree else [ast.Pass()])
    return tree.body


def _is_main_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and ast.unparse(statement.test) == "__name__ == '__main__'"


def _parents(module: str) -> list[str]:
    """Packages above `module`: importing it runs their __init__ files."""
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _file(module: str, root: Path) -> Path | None:
    base = root.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


def _load(module: str, root: Path) -> Module | None:
    path = _file(module, root)
    return None if path is None else _parse(module, path, path.stat().st_mtime_ns)


@cache
def _parse(module: str, path: Path, _changed: int) -> Module:
    body = _without_docstrings(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)))
    return Module(module, path.name == "__init__.py", body)
