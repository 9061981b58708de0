# One drafter per target, method and seed.  Its checkpoints lie in the work folder, where no rerun deletes them.


rule train:
    input:
        f"{OUT}/trajectories/{{target}}/manifest.json",
    output:
        weights=f"{OUT}/drafters/{{target}}/{{method}}-seed{{seed}}/model.safetensors",
        config=f"{OUT}/drafters/{{target}}/{{method}}-seed{{seed}}/config.json",
        curve=f"{OUT}/drafters/{{target}}/{{method}}-seed{{seed}}/learning_curve.csv",
        done=f"{OUT}/drafters/{{target}}/{{method}}-seed{{seed}}/done.json",
    wildcard_constraints:
        target=plan.targets_of(imported=False),
        method=plan.any_of(plan.trained),
    params:
        settings=plan.train,
        code=lambda wildcards: plan.code("train", [wildcards.method]),
    log:
        f"{WORK}/logs/train-{{target}}-{{method}}-seed{{seed}}.log",
    threads: plan.threads("train", TORCH_THREADS)
    priority: plan.train_length
    conda:
        "../../environment.yml"
    message:
        "train {wildcards.method} for {wildcards.target}, seed {wildcards.seed}"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch --threads {threads} harness.train'
        ' --config "$HARNESS_CONFIG" --target {wildcards.target} --method {wildcards.method}'
        ' --seed {wildcards.seed} --out "$(dirname {output.done:q})"'
        " > >(tee -i {log:q}) 2>&1"
