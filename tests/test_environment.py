"""What pip, conda and the pins say about the same package agrees."""

import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def ranges(lines: list[str]) -> dict[str, tuple[str, str]]:
    """Name -> (versions, marker)."""
    parsed = map(Requirement, lines)
    return {canonicalize_name(r.name): (str(r.specifier), str(r.marker or "")) for r in parsed}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = {}
    for line in lines:
        if line and not line.startswith("#"):
            name, version = line.split("==")
            assert canonicalize_name(name) not in found, f"{name} is pinned twice"
            found[canonicalize_name(name)] = version
    return found


def conda() -> dict:
    return yaml.safe_load((ROOT / "environment.yml").read_text())


def test_conda_has_every_pin_but_those_of_the_tests_and_refers_to_no_other_file():
    """Snakemake copies the file elsewhere, where nothing that it names by path is found."""
    listed = next(item["pip"] for item in conda()["dependencies"] if isinstance(item, dict))
    extras = project()["optional-dependencies"]
    tools = ranges(extras["test"]).keys()
    assert {name: versions for name, (versions, _) in ranges(listed).items()} == {
        name: f"=={version}" for name, version in pins().items() if name not in tools
    }
    markers = {name: marker for name, (_, marker) in ranges(project()["dependencies"] + extras["gguf"]).items()}
    assert {name: marker for name, (_, marker) in ranges(listed).items() if name in markers} == markers


def test_conda_and_pip_ask_for_the_same_python():
    assert f"python{project()['requires-python']}" in conda()["dependencies"]


def test_every_pin_lies_within_its_range():
    extras = [line for lines in project()["optional-dependencies"].values() for line in lines]
    for requirement in map(Requirement, project()["dependencies"] + extras):
        pinned = pins().get(canonicalize_name(requirement.name))
        assert pinned is not None, f"{requirement.name} has no pin in constraints.txt"
        assert requirement.specifier.contains(pinned), f"{requirement.name}=={pinned} is outside {requirement}"


def test_pins_are_exact_and_name_no_build():
    assert all(re.fullmatch(r"[0-9][0-9A-Za-z.]*", version) for version in pins().values())
