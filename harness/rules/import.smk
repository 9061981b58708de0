# A released checkpoint in place of a training, where `pretrained` names one; it has no learning curve.


rule import_drafter:
    output:
        weights=f"{OUT}/drafters/{{target}}/{{method}}-seed{{seed}}/model.safetensors",
        config=f"{OUT}/drafters/{{target}}/{{method}}-seed{{seed}}/config.json",
        done=f"{OUT}/drafters/{{target}}/{{method}}-seed{{seed}}/done.json",
    wildcard_constraints:
        target=plan.targets_of(imported=True),
        method=plan.any_of(plan.lenders),
    params:
        settings=plan.pretrained,
        code=lambda wildcards: plan.code("import", [wildcards.method]),
        source=plan.source,
    log:
        f"{WORK}/logs/import-{{target}}-{{method}}-seed{{seed}}.log",
    priority: plan.before_training  # a hub that does not answer is found before anything is trained
    conda:
        "../../environment.yml"
    message:
        "import {wildcards.method} for {wildcards.target}, seed {wildcards.seed}, from {params.source}"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch harness.checkpoint import'
        ' --config "$HARNESS_CONFIG" --target {wildcards.target} --method {wildcards.method}'
        ' --out "$(dirname {output.done:q})" > >(tee -i {log:q}) 2>&1'
