"""A digest changes with the code a stage can reach, and with nothing else."""

import ast
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from harness import stage

ROOT = Path(__file__).parent.parent

FILES = {
    "harness/__init__.py": "",
    "harness/run_suite.py": (
        "from harness.tools import used, HEADS\nfrom harness import things\n"
        "def main():\n    from methods.deep import far\n    return used(), things.taken, HEADS, far()\n"
    ),
    "harness/tools.py": (
        "import harness.effects\nfrom harness.config import load\nfrom .inner import helper as aid\n"
        "def used():\n    '''Words.'''\n    return aid(load)\n"
        "def unused():\n    return 1\n"
        "def plain():\n    return 1\ndef domino():\n    return 1\n"
        "HEADS: dict = {'plain': plain, 'domino': domino}\n"
        "from harness.registry import register\nfrom functools import cache\n"
        "@register\ndef listed():\n    return 1\n@cache\ndef stored():\n    return 1\n"
        "if __name__ == '__main__':\n    unused()\n"
    ),
    "harness/registry.py": "TABLE = {}\ndef register(made):\n    TABLE[made.__name__] = made\n    return made\n",
    "harness/inner.py": "LEVEL = 3\ndef helper(x):\n    return LEVEL\n",
    "harness/things.py": "taken = 1\nleft = 2\n",
    "harness/effects.py": "import json\nname = 'x'\njson.register = name\nquiet = 1\n",
    "harness/config.py": "def load():\n    return 1\n",
    "methods/__init__.py": "from methods.near import far\n",
    "methods/near.py": "def far():\n    return 5\n",
    "methods/deep.py": "from methods import far\n",
}


@pytest.fixture
def tree(tmp_path):
    for name, source in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return tmp_path


def digest(root: Path, methods=("dflash",)) -> str:
    stage._digest.cache_clear()
    return stage.digest("decode", methods, root)


def changed(root: Path, name: str, old: str, new: str) -> bool:
    before = digest(root)
    path = root / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return digest(root) != before


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("harness/run_suite.py", "return used()", "return 1, used()"),
        ("harness/tools.py", "return aid(load)", "return aid(None)"),
        ("harness/inner.py", "LEVEL = 3", "LEVEL = 4"),  # a constant behind a renamed relative import
        ("harness/things.py", "taken = 1", "taken = 3"),  # an attribute of a module
        ("harness/effects.py", "json.register = name", "json.register = None"),  # run by a bare import
        ("methods/near.py", "return 5", "return 6"),  # through an import in a function and a re-export
        ("harness/tools.py", "def plain():\n    return 1", "def plain():\n    return 2"),  # this method's component
        ("harness/tools.py", "def listed():\n    return 1", "def listed():\n    return 2"),  # found through a table
        ("harness/registry.py", "return made", "return None"),
    ],
)
def test_reached_code_counts(tree, name, old, new):
    assert changed(tree, name, old, new)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("harness/tools.py", "def unused():\n    return 1", "def unused():\n    return 2"),
        ("harness/tools.py", "def domino():\n    return 1", "def domino():\n    return 2"),  # another method's
        ("harness/tools.py", "'domino': domino", "'domino': domino, 'markov': unused"),  # a new component
        ("harness/tools.py", "'''Words.'''", "'''Other words.'''  # and a comment"),
        ("harness/tools.py", "    unused()\n", "    used()\n"),  # its own command line
        ("harness/tools.py", "def stored():\n    return 1", "def stored():\n    return 2"),  # a library's decorator
        ("harness/things.py", "left = 2", "left = 3"),
        ("harness/effects.py", "quiet = 1", "quiet = 2"),
        ("harness/config.py", "return 1", "return 2"),  # settings are recorded as values
    ],
)
def test_unreached_code_does_not_count(tree, name, old, new):
    assert not changed(tree, name, old, new)


def test_missing_stage_is_an_error_that_names_it(tree):
    with pytest.raises(FileNotFoundError, match="harness.timing"):
        stage.digest("timing", [], tree)


def edited(root: Path, name: str, symbol: str) -> str:
    """The file with one definition changed, in a way that only its code shows."""
    tree = ast.parse((root / name).read_text())
    found = [node for node in tree.body if getattr(node, "name", None) == symbol]
    assert found, f"{name} defines no {symbol}; name another definition in this test"
    found[0].body.append(ast.parse("edited = None").body[0])
    return ast.unparse(tree)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    """A copy of the project's code."""
    root = tmp_path_factory.mktemp("project")
    for package in stage.PACKAGES:
        ignored = shutil.ignore_patterns("target", "__pycache__")
        shutil.copytree(ROOT / package, root / package, ignore=ignored)
    return root


def all_digests(root: Path, methods: Sequence[str], sources: Sequence[str]) -> dict[str, str]:
    stage._digest.cache_clear()
    return {name: stage.digest(name, methods, root, sources=sources) for name in stage.STAGES}


def touched_by(project: Path, name: str, text: str, methods=("ar", "dflash"), sources=(stage.EVERY_SOURCE,)):
    """Stages whose digest is another one while the file `name` reads `text`."""
    path = project / name
    original = path.read_text()
    before = unedited(project, methods, sources)
    try:
        path.write_text(text)
        after = all_digests(project, methods, sources)
    finally:
        path.write_text(original)
    return {changed for changed in before if before[changed] != after[changed]}


@cache
def unedited(project: Path, methods: Sequence[str], sources: Sequence[str]) -> dict[str, str]:
    """The digests of the copy as it was made, to which every edit is taken back."""
    return all_digests(project, methods, sources)


@pytest.mark.parametrize(
    ("name", "symbol", "touched"),
    [
        ("harness/report/figures.py", "main", {"figures"}),
        ("harness/report/table1.py", "main", {"table1"}),
        ("harness/decode.py", "Decoder", {"decode", "timing", "throughput"}),
        ("harness/cache.py", "RaggedCache", {"decode", "timing", "throughput"}),
        (
            "harness/accept.py",
            "accept_exact",
            {"trajectories", "decode", "timing", "throughput"},
        ),  # these decide the tokens
        ("harness/stops.py", "StopRule", {"trajectories", "decode", "timing", "throughput"}),
        ("methods/runner.py", "BlockDraftRunner", {"decode", "timing", "throughput"}),
        ("methods/backbone.py", "DFlashBackbone", {"train", "import", "decode", "timing", "throughput"}),
        ("methods/published.py", "drafter_config", {"import"}),
        ("harness/checkpoint.py", "import_drafter", {"import"}),
        ("harness/train/loop.py", "Trainer", {"train"}),
        ("harness/train/trajectories.py", "generate", {"trajectories"}),
        ("harness/config.py", "load_config", set()),
        ("harness/sections.py", "distinct", set()),
        ("harness/launch.py", "main", set()),
    ],
)
def test_edit_touches_exactly_these_stages(project, name, symbol, touched):
    assert touched_by(project, name, edited(project, name, symbol)) == touched


def test_drafter_code_does_not_touch_the_baseline(project):
    text = edited(project, "methods/heads.py", "PlainHead")
    assert "decode" not in touched_by(project, "methods/heads.py", text, methods=("ar",))
    assert "decode" in touched_by(project, "methods/heads.py", text, methods=("dflash",))


HUMANEVAL = ("harness/data/humaneval.py", "Write a solution", "Write one solution")
GSM8K = ("harness/data/gsm8k.py", "Please reason", "Do reason")
MATH500 = ("harness/data/math500.py", 'f"Problem: {', 'f"Problems: {')
MBPP_FILE = ("harness/data/files.py", "rows=427,", "rows=428,")
NEW_SOURCE = ("harness/data/suites.py", '"pocket": _pocket,', '"pocket": _pocket, "new": _humaneval,')
NEW_FILE = ("harness/data/files.py", '"gsm8k/test": Source', '"new/test": None, "gsm8k/test": Source')


@pytest.mark.parametrize(
    ("change", "sources", "touched"),
    [
        (HUMANEVAL, ["pocket", "gsm8k"], set()),
        (HUMANEVAL, ["humaneval"], {"trajectories", "decode", "timing", "throughput"}),
        (HUMANEVAL, [stage.EVERY_SOURCE], {"trajectories", "decode", "timing", "throughput"}),
        (GSM8K, ["pocket"], set()),
        (MATH500, ["gsm8k", "humaneval", "mbpp", "mt_bench", "instructions"], set()),
        (MATH500, ["math500"], {"trajectories", "decode", "timing", "throughput"}),
        (MBPP_FILE, ["gsm8k", "math500", "instructions"], set()),
        (MBPP_FILE, ["mbpp_bare"], {"trajectories", "decode", "timing", "throughput"}),
        (NEW_SOURCE, ["pocket", "gsm8k", "humaneval"], set()),
        (NEW_FILE, ["pocket", "gsm8k", "humaneval"], set()),
    ],
)
def test_a_new_or_reworded_benchmark_touches_only_those_who_ask_its_prompts(project, change, sources, touched):
    name, old, new = change
    original = (project / name).read_text()
    assert original.count(old) == 1
    found = touched_by(project, name, original.replace(old, new), methods=("dflash",), sources=tuple(sources))
    assert found == touched


def test_modules_of_the_project_are_imported_by_a_name_of_their_own():
    """``import harness.tools`` binds only `harness`, through which no digest can follow ``harness.tools.f``."""
    dotted = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for package in stage.PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import)
        for alias in node.names
        if alias.name.split(".")[0] in stage.PACKAGES and "." in alias.name and alias.asname is None
    ]
    assert dotted == [], "write `from package import module`, or `import package.module as name`"
