# The target answers the training prompts; its answers are the labels.


rule trajectories:
    output:
        f"{OUT}/trajectories/{{target}}/manifest.json",
    params:
        settings=plan.trajectories,
        code=plan.trajectories_code(),
    log:
        f"{WORK}/logs/trajectories-{{target}}.log",
    priority: plan.before_training  # it asks first what later stages would refuse
    threads: TORCH_THREADS
    conda:
        "../../environment.yml"
    message:
        "{wildcards.target} writes the responses to the training prompts"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch --threads {threads} harness.train.trajectories'
        ' --config "$HARNESS_CONFIG" --target {wildcards.target} --out "$(dirname {output:q})"'
        " > >(tee -i {log:q}) 2>&1"
