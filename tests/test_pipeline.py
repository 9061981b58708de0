"""What the pipeline would do again after which change, seen in dry runs of a copy whose results are already
there."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from harness.config import load_config, profile_names
from harness.plan import Plan
from tests.forked import ForkedSnakemake

ROOT = Path(__file__).parent.parent
RULES = ROOT / "harness" / "rules"
FIGURES = {"acceptance_figure", "position_figure", "dose_figure"}  # of the tables; curves have one of their own
TIMED = {"timing", "latency", "latency_figure"}
LOADED = {"throughput", "table2", "concurrency_figure"}
SPEED = dict.fromkeys(TIMED | LOADED, 1)
AFTER_TRAINING = {"decode", "cells", "table1", "reproduction", "table3", "positions", *FIGURES, *SPEED, "all"}
DOWNSTREAM = {"cells", "table1", "reproduction", "table3", "positions", *FIGURES, "all"}
#: Two methods and the baseline, a control that is trained and one that borrows its weights.
WHO = {
    "methods": ["ar", "dflash", "dflow"],
    "ablations": ["dflash_rounds", "dflow_off"],
    "comparisons": [["dflow", "dflash"], ["dflow", "dflow_off"]],
}
TRAINED, DRAFTING, TEMPERATURES = 3, 4, 2


@dataclass
class Tree:
    """A copy of the project, and Snakemake in it."""

    root: Path
    command: ForkedSnakemake

    def __truediv__(self, name: str) -> Path:
        return self.root / name

    def snakemake(self, *arguments: str, settings: tuple[str, ...] = ()) -> str:
        """What the command says.  Fails if it fails."""
        status, said = self.attempt(*arguments, settings=settings)
        assert status == 0, said
        return said

    def attempt(self, *arguments: str, settings: tuple[str, ...] = ()) -> tuple[int, str]:
        given = ["--cores", "2", "--configfile", "mine.yaml", *arguments]
        return self.command(*given, *(["--config", *settings] if settings else []))


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Iterator[Tree]:
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
    settings = {"extends": "pocket", "profile": "pocket", "targets": {"pocket": {"source": "./model"}}} | WHO
    (root / "mine.yaml").write_text(yaml.safe_dump(settings))
    plan = Plan(load_config(root / "mine.yaml", check=False))
    for name in made_by(plan):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    with ForkedSnakemake(root, tmp_path_factory.mktemp("said") / "out") as command:
        tree = Tree(root, command)
        tree.snakemake("--touch", "--forceall")
        yield tree


def made_by(plan: Plan) -> list[str]:
    out = plan.out
    return [
        f"{out}/trajectories/pocket/manifest.json",
        *(file for seed in plan.config.seeds for name in plan.trained for file in plan.drafter("pocket", name, seed)),
        *plan.marks("done.json", plan.entrants),
        *plan.marks("learning_curve.csv", plan.entrants),
        *plan.records(plan.entrants),
        *plan.timings(),
        *(f"{out}/{name}" for name in ("cells.csv", "table1.csv", "table1.md")),
        *plan.tables(),
        *plan.figures_made(),
    ]


def jobs(tree: Tree, *settings: str) -> dict[str, int]:
    """Jobs by rule that a run would start now."""
    text = tree.snakemake("--dry-run", settings=settings)
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
        assert jobs(tree) == dict.fromkeys(
            {*FIGURES, "training_figure", "latency_figure", "concurrency_figure", "all"}, 1
        )


def test_edited_decoder_decodes_and_times_again_without_training(tree):
    with Edited(tree / "harness/decode.py", "Decoder"):
        expected = {"decode": (DRAFTING + 1) * TEMPERATURES, **SPEED, **dict.fromkeys(DOWNSTREAM, 1)}
        assert jobs(tree) == expected


def test_edited_trainer_trains_again_and_redoes_only_what_the_drafter_takes_part_in(tree):
    with Edited(tree / "harness/train/loop.py", "Trainer"):
        made = {"train": TRAINED, "decode": DRAFTING * TEMPERATURES, **SPEED, "training_figure": 1}
        expected = {**made, **dict.fromkeys(DOWNSTREAM, 1)}
        assert jobs(tree) == expected


def test_edited_relay_leaves_methods_without_one_alone(tree):
    with Edited(tree / "methods/relays.py", "VerifierRelay"):
        made = {"train": 1, "decode": 2 * TEMPERATURES, **SPEED, "training_figure": 1}
        assert jobs(tree) == {**made, **dict.fromkeys(DOWNSTREAM, 1)}


def test_settings_of_the_relay_are_none_of_a_method_without_one(tree):
    made = {"train": 1, "decode": 2 * TEMPERATURES, **SPEED, "training_figure": 1}
    assert jobs(tree, "drafter={relay: {mlp_width: 7}}") == {**made, **dict.fromkeys(DOWNSTREAM, 1)}


def test_import_takes_the_place_of_one_training_and_of_no_other(tree):
    (tree / "release").mkdir(exist_ok=True)
    one = "pretrained={pocket: {dflash: {source: ./release, format: dflash}}}"
    made = {"import_drafter": 1, "decode": TEMPERATURES, **SPEED, "training_figure": 1}
    assert jobs(tree, one) == {**made, **dict.fromkeys(DOWNSTREAM, 1)}


def test_new_seed_leaves_the_other_seeds_alone(tree):
    made = {"train": TRAINED, "decode": (DRAFTING + 1) * TEMPERATURES, "training_figure": 1}
    assert jobs(tree, "seeds=[0, 1]") == {**made, **dict.fromkeys(DOWNSTREAM, 1)}


def test_new_control_leaves_all_but_table_3_and_what_reads_it_alone(tree):
    control = 'variants={mine: {label: mine, weights: dflow, relay: "off"}}'
    made = {
        "decode": TEMPERATURES,
        **dict.fromkeys(["table3", "reproduction", "positions", "position_figure", "dose_figure", "all"], 1),
    }
    assert jobs(tree, control, "ablations=[dflash_rounds, dflow_off, mine]") == made | {"training_figure": 1}


def test_new_method_leaves_the_other_methods_alone(tree):
    """A recipe, its head in a file that the others use too, and its name in the configuration."""
    recipes, heads = tree / "methods/recipes.py", tree / "methods/heads.py"
    before = recipes.read_text(), heads.read_text()
    try:
        line = 'Recipe("dflash",'
        assert line in before[0]
        new = 'Recipe("newcomer", "shared_fc", "dflash", "novel", "none", "decay"),\n        '
        recipes.write_text(before[0].replace(line, new + line))
        added = 'class NovelHead(PlainHead):\n    """New."""\n\n\n'
        table, count = re.subn(r"^HEADS: .*? = \{", rf'{added}\g<0>"novel": NovelHead, ', before[1], flags=re.MULTILINE)
        assert count == 1
        heads.write_text(table)
        new_jobs = {"train": 1, "decode": TEMPERATURES, **SPEED, "training_figure": 1}
        assert jobs(tree, "methods=[ar, dflash, dflow, newcomer]") == {**new_jobs, **dict.fromkeys(DOWNSTREAM, 1)}
    finally:
        recipes.write_text(before[0])
        heads.write_text(before[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "again"),
    [
        ("suites={pocket_word: {prompts: 3}}", {"decode", *TIMED} | DOWNSTREAM),
        ("train={steps: 5}", {"train", "decode", *SPEED, "training_figure"} | DOWNSTREAM),
        ("targets={pocket: {training_dtype: bfloat16}}", {"trajectories", "train", "training_figure"} | AFTER_TRAINING),
        ("decode={batch_size: 3}", {"decode", *TIMED} | DOWNSTREAM),
        ("concurrency={repeats: 4}", {*LOADED, "all"}),
        ("timing={repeats: 4}", {*TIMED, "cells", "table1", "reproduction", "acceptance_figure", "all"}),
        ("report={bootstrap: 10}", DOWNSTREAM - {"positions", "position_figure"}),
    ],
)
def test_changed_setting_redoes_what_reads_it(tree, setting, again):
    assert set(jobs(tree, setting)) == again


@pytest.mark.slow
def test_setting_that_only_says_where_changes_no_result(tree):
    assert jobs(tree, "data_dir=harness") == {}


@pytest.mark.slow
def test_changed_weights_of_the_target_redo_everything(tree):
    file = tree / "model" / "config.json"
    try:
        file.write_text('{"other": 1}')
        assert set(jobs(tree)) == {"trajectories", "train", "decode", *SPEED, "training_figure"} | DOWNSTREAM
    finally:
        file.write_text("{}")


def test_reworded_benchmark_that_is_not_run_redoes_nothing(tree):
    file = tree / "harness/data/humaneval.py"
    original = file.read_text()
    try:
        file.write_text(original.replace("Write a solution", "Write one solution"))
        assert file.read_text() != original and jobs(tree) == {}
    finally:
        file.write_text(original)


def test_without_a_drafter_no_figure_is_planned(tree):
    assert "figure" not in " ".join(jobs(tree, "methods=[ar]", "ablations=[]", "comparisons=[]"))


def test_run_from_another_folder_stops_with_the_folder_to_go_to(tree, tmp_path):
    command = [sys.executable, "-m", "snakemake", "-n", "-s", str(tree / "Snakefile")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and f"cd {tree.root} first" in done.stdout + done.stderr


def test_deleting_all_output_spares_what_is_committed(tree):
    text = tree.snakemake("--delete-all-output", "--dry-run")
    named = re.findall(r"^Would delete (\S+)", text, re.MULTILINE)
    assert len(named) > 20, text
    kept = ("results/reported", "results/reference", "results/published")
    assert [name for name in named if name.startswith(kept) or not name.startswith(("results/", "figures/"))] == []


def test_lint_has_nothing_to_say(tree):
    tree.snakemake("--lint")


def test_misspelt_setting_stops_the_run_before_it_starts(tree):
    status, said = tree.attempt("--dry-run", settings=("train={stpes: 3}",))
    assert status != 0
    assert "unknown key 'stpes' in train" in said and "valid keys: steps" in said


def test_profiles_share_no_file():
    plans = [Plan(load_config(name, check=False)) for name in profile_names()]
    made = [name for plan in plans for name in (*plan.records(), *plan.marks("done.json"), *plan.timings())]
    assert len(made) == len(set(made))


def test_what_checks_everything_is_first_among_the_rules_that_are_ready():
    """Baselines could be decoded first, for hours, before a mistake is found.  (Dry runs do not show the order.)"""
    found = {path.stem: re.findall(r"^    priority: ([\w.]+)", path.read_text(), re.M) for path in RULES.glob("*.smk")}
    first = ["plan.before_training"]
    assert found.pop("trajectories") == found.pop("import") == first and found.pop("train") == ["plan.train_length"]
    assert not any(found.values())


def test_every_output_is_ignored_by_git():
    plan = Plan(load_config("pocket", check=False))
    names = "\n".join([*made_by(plan), f"{plan.work}/config.yaml"])
    done = subprocess.run(
        ["git", "check-ignore", "--no-index", "--stdin"], cwd=ROOT, input=names, capture_output=True, text=True
    )
    if done.returncode == 128:
        pytest.skip("not in a git repository")
    assert done.stdout.split() == names.split()


def test_the_longest_trainings_start_first():
    plan = Plan(load_config("pocket"))
    by_length = sorted(plan.trained, key=lambda name: -plan.train_length(SimpleNamespace(method=name)))
    methods = [name for name in by_length if name in plan.config.methods]
    assert methods == ["dflow_domino", "dflow", "domino", "dflash"]
    assert by_length.index("dflow_k3") < by_length.index("dflow_k1") < by_length.index("domino")
    assert plan.before_training > max(plan.train_length(SimpleNamespace(method=name)) for name in plan.trained)
