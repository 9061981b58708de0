"""What the pipeline would do again after which change, seen in dry runs of a copy whose results are already
there."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness.config import load_config
from harness.plan import Plan

ROOT = Path(__file__).parent.parent
DOWNSTREAM = {"cells", "table1", "acceptance_figure", "all"}
SUITES, TEMPERATURES = 5, 2


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of the project in which every result has been made: empty files, recorded as Snakemake records
    them."""
    root = tmp_path_factory.mktemp("tree")
    for name in ("Snakefile", "environment.yml"):
        shutil.copy(ROOT / name, root / name)
    for package in ("harness", "methods"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("target", "__pycache__"))
    shutil.copytree(ROOT / "results" / "reported", root / "results" / "reported")
    (root / "model").mkdir()
    (root / "model" / "config.json").write_text("{}")
    settings = {"extends": "pocket", "targets": {"pocket": {"source": "./model"}}}
    (root / "mine.yaml").write_text(yaml.safe_dump(settings))
    plan = Plan(load_config(root / "mine.yaml", check=False))
    for name in made_by(plan):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    snakemake(root, "--touch", "--forceall")
    return root


def made_by(plan: Plan) -> list[str]:
    out = plan.out
    return [
        f"{out}/trajectories/pocket/manifest.json",
        *plan.drafters("pocket", plan.config.seeds),
        *plan.marks("done.json"),
        *plan.marks("learning_curve.csv"),
        *plan.records(),
        *plan.timings(),
        *(f"{out}/{name}" for name in ("cells.csv", "table1.csv", "table1.md")),
        *plan.figure_files("acceptance"),
        *plan.figure_files("training"),
    ]


def snakemake(root: Path, *arguments: str, settings: tuple[str, ...] = ()) -> str:
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--configfile", "mine.yaml", *arguments]
    if settings:
        command += ["--config", *settings]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def jobs(root: Path, *settings: str) -> dict[str, int]:
    """Jobs by rule that a run would start now."""
    text = snakemake(root, "--dry-run", settings=settings)
    table = re.search(r"^job +count\n-+ +-+\n(.*?)^total", text, re.MULTILINE | re.DOTALL)
    if table is None:
        assert "Nothing to be done" in text, text
        return {}
    return {line.split()[0]: int(line.split()[1]) for line in table.group(1).splitlines()}


class Edited:
    """One definition of a file changed, for as long as the block lasts."""

    def __init__(self, path: Path, symbol: str) -> None:
        self.path, self.symbol, self.original = path, symbol, path.read_text()

    def __enter__(self) -> None:
        module = ast.parse(self.original)
        found = next(node for node in module.body if getattr(node, "name", None) == self.symbol)
        found.body.append(ast.parse("edited = None").body[0])
        self.path.write_text(ast.unparse(module))

    def __exit__(self, *_) -> None:
        self.path.write_text(self.original)


def test_second_run_has_nothing_to_do(tree):
    assert jobs(tree) == {}


def test_edited_figure_is_drawn_again_and_nothing_else(tree):
    with Edited(tree / "harness/report/figures.py", "main"):
        assert jobs(tree) == {"acceptance_figure": 1, "training_figure": 1, "all": 1}


def test_edited_decoder_decodes_and_times_again_without_training(tree):
    with Edited(tree / "harness/decode.py", "Decoder"):
        expected = {"decode": 2 * SUITES * TEMPERATURES, "timing": 1, **dict.fromkeys(DOWNSTREAM, 1)}
        assert jobs(tree) == expected


def test_edited_trainer_trains_again_and_redoes_only_what_the_drafter_takes_part_in(tree):
    with Edited(tree / "harness/train/loop.py", "Trainer"):
        drafted = SUITES * TEMPERATURES
        expected = {"train": 1, "decode": drafted, "timing": 1, "training_figure": 1, **dict.fromkeys(DOWNSTREAM, 1)}
        assert jobs(tree) == expected


def test_new_seed_leaves_the_other_seeds_alone(tree):
    new = {"train": 1, "decode": 2 * SUITES * TEMPERATURES, "training_figure": 1, **dict.fromkeys(DOWNSTREAM, 1)}
    assert jobs(tree, "seeds=[0, 1]") == new


def test_new_method_leaves_the_other_methods_alone(tree):
    """A recipe, its head in a file that the others use too, and its name in the configuration."""
    recipes, heads = tree / "methods/recipes.py", tree / "methods/heads.py"
    before = recipes.read_text(), heads.read_text()
    try:
        line = 'Recipe("dflash",'
        assert line in before[0]
        new = 'Recipe("newcomer", "shared_fc", "dflash", "novel", "none", "decay"),\n        '
        recipes.write_text(before[0].replace(line, new + line))
        assert '{"plain": PlainHead' in before[1]
        added = '\n\nclass NovelHead(PlainHead):\n    """New."""\n'
        table = before[1].replace('{"plain": PlainHead', '{"novel": NovelHead, "plain": PlainHead')
        place = table.index("HEADS:")
        heads.write_text(table[:place] + added + "\n\n" + table[place:])
        new_jobs = {"train": 1, "decode": SUITES * TEMPERATURES, "timing": 1, "training_figure": 1}
        assert jobs(tree, "methods=[ar, dflash, newcomer]") == {**new_jobs, **dict.fromkeys(DOWNSTREAM, 1)}
    finally:
        recipes.write_text(before[0])
        heads.write_text(before[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "again"),
    [
        ("suites={pocket_word: {prompts: 3}}", {"decode", "timing"}),
        ("train={steps: 5}", {"train", "decode", "timing", "training_figure"}),
        ("decode={batch_size: 3}", {"decode", "timing"}),
        ("timing={repeats: 4}", {"timing"}),
        ("report={bootstrap: 10}", set()),
    ],
)
def test_changed_setting_redoes_what_reads_it(tree, setting, again):
    assert set(jobs(tree, setting)) == again | DOWNSTREAM


@pytest.mark.slow
def test_setting_that_only_says_where_changes_no_result(tree):
    assert jobs(tree, "data_dir=harness") == {}


@pytest.mark.slow
def test_changed_weights_of_the_target_redo_everything(tree):
    file = tree / "model" / "config.json"
    try:
        file.write_text('{"other": 1}')
        assert set(jobs(tree)) == {"trajectories", "train", "decode", "timing", "training_figure"} | DOWNSTREAM
    finally:
        file.write_text("{}")


def test_deleting_all_output_spares_what_is_committed(tree):
    text = snakemake(tree, "--delete-all-output", "--dry-run")
    named = re.findall(r"^Would delete (\S+)", text, re.MULTILINE)
    assert len(named) > 20, text
    kept = ("results/reported", "results/reference", "results/published")
    assert [name for name in named if name.startswith(kept) or not name.startswith(("results/", "figures/"))] == []


def test_lint_has_nothing_to_say(tree):
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--lint", "--configfile", "mine.yaml"],
        cwd=tree,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_misspelt_setting_stops_the_run_before_it_starts(tree):
    command = [sys.executable, "-m", "snakemake", "-n", "--configfile", "mine.yaml", "--config", "train={stpes: 3}"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "unknown key 'stpes' in train" in said and "valid keys: steps" in said


def test_profiles_share_no_file():
    plans = [Plan(load_config(name, check=False)) for name in ("pocket", "smoke", "laptop", "paper")]
    made = [name for plan in plans for name in (*plan.records(), *plan.marks("done.json"), *plan.timings())]
    assert len(made) == len(set(made))


def test_every_output_is_ignored_by_git():
    plan = Plan(load_config("pocket", check=False))
    names = "\n".join([*made_by(plan), f"{plan.work}/config.yaml"])
    done = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin"], cwd=ROOT, input=names, capture_output=True, text=True
    )
    if done.returncode == 128:
        pytest.skip("not in a git repository")
    assert done.stdout.split() == names.split()
