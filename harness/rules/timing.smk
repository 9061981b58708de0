# All methods in one process, interleaved, with the machine to themselves.


rule timing:
    input:
        lambda wildcards: plan.drafters(wildcards.target, plan.config.seeds[:1]),
    output:
        f"{OUT}/timing/{{target}}.jsonl",
    params:
        settings=plan.timing,
        code=plan.code("timing"),
    log:
        f"{WORK}/logs/timing-{{target}}.log",
    threads: workflow.cores or 1
    conda:
        "../../environment.yml"
    message:
        "time every method on {wildcards.target}"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch --threads {threads} harness.timing'
        ' --config "$HARNESS_CONFIG" --target {wildcards.target} --out {output:q}'
        " > >(tee -i {log:q}) 2>&1"
