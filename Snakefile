"""What must exist, and what it is made from.  How a stage works is in harness/; each is a command of its own.

    snakemake --cores all results/table1.csv          # the pocket profile, the default: Table 1
    snakemake --cores all                             # every table and figure
    snakemake --cores all --config profile=smoke      # another profile, into results/smoke and figures/smoke
    snakemake --cores all --config 'train={steps: 500}' 'seeds=[0, 1, 2]'
    snakemake --cores all --configfile mine.yaml      # your own; `extends:` names its base, `profile:` itself

Files to be made come before --config, which takes every word that follows it.

Interrupted?  The same command goes on where it stopped.  After a kill of Snakemake itself:

    snakemake --unlock && snakemake --cores all --rerun-incomplete
"""

import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.settings.types import DeploymentMethod
from snakemake.utils import min_version

min_version("9.0")
sys.path.insert(0, workflow.basedir)

from harness.config import ConfigError
from harness.fingerprints import gpu_rounds, reported_files
from harness.launch import gpu_ids
from harness.plan import Plan

if Path.cwd().resolve() != Path(workflow.basedir).resolve():
    raise WorkflowError(
        f"paths are those of the project's root, and this is {Path.cwd()}: cd {workflow.basedir} first; "
        "where results go is said by output_dir, figures_dir and work_dir"
    )

try:
    plan = Plan.of(config)
except ConfigError as error:
    raise WorkflowError(str(error))

OUT, WORK = plan.out, plan.work

# Torch takes all cores, so that stages run one after another; with several GPUs, one stage on each.
TORCH_THREADS = max(1, (workflow.cores or 1) // max(1, len(gpu_ids())))

# How a stage is started is no part of what it makes, so it is passed through the environment and not as a parameter.
IN_CONDA = DeploymentMethod.CONDA in workflow.deployment_settings.deployment_method
shell.executable("bash")
shell.prefix(
    f"set -euo pipefail; export HARNESS_PYTHON={'python' if IN_CONDA else sys.executable!r} "
    f"HARNESS_CONFIG={str(plan.write_config())!r}; "
)


wildcard_constraints:
    target=plan.any_of(plan.config.targets),
    method=plan.any_of(plan.entrants),
    suite=plan.any_of(plan.config.suites),
    temperature=plan.any_of(plan.temperatures),
    seed=plan.any_of(plan.config.seeds),


localrules:
    all,


rule all:
    default_target: True
    input:
        f"{OUT}/table1.csv",
        f"{OUT}/table1.md",
        f"{OUT}/cells.csv",
        plan.tables(),
        plan.figures_made(),


include: "harness/rules/trajectories.smk"
include: "harness/rules/train.smk"
include: "harness/rules/import.smk"
include: "harness/rules/decode.smk"
include: "harness/rules/timing.smk"
include: "harness/rules/throughput.smk"
include: "harness/rules/tables.smk"
include: "harness/rules/figures.smk"
