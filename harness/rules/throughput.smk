# All methods in one process, with 1, 2, 4 ... sequences at a time and the machine to themselves; then Table 2.


rule throughput:
    input:
        lambda wildcards: plan.drafters(wildcards.target, plan.config.seeds[:1]),
    output:
        f"{OUT}/throughput/{{target}}.jsonl",
    params:
        settings=plan.throughput,
        code=plan.code("throughput", plan.config.methods, plan.config.concurrency.suites),
    log:
        f"{WORK}/logs/throughput-{{target}}.log",
    threads: workflow.cores or 1
    conda:
        "../../environment.yml"
    message:
        "throughput of every method on {wildcards.target} by concurrency"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch --threads {threads} harness.throughput'
        ' --config "$HARNESS_CONFIG" --target {wildcards.target} --out {output:q}'
        " > >(tee -i {log:q}) 2>&1"


rule table2:
    input:
        reported_files(),
        expand(f"{OUT}/throughput/{{target}}.jsonl", target=plan.config.targets),
    output:
        csv=f"{OUT}/table2.csv",
        md=f"{OUT}/table2.md",
        tidy=f"{OUT}/concurrency.csv",
    params:
        settings=plan.concurrency(),
        code=plan.code("table2"),
    log:
        f"{WORK}/logs/table2.log",
    conda:
        "../../environment.yml"
    message:
        "Table 2: throughput by concurrency"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch harness.report.table2 --config "$HARNESS_CONFIG"'
        " --out {output.csv:q} --tidy {output.tidy:q} > >(tee -i {log:q}) 2>&1"


rule concurrency_figure:
    input:
        f"{OUT}/concurrency.csv",
    output:
        plan.figure_files("concurrency"),
    params:
        settings=plan.figure("concurrency"),
        code=plan.code("figures", plan.config.methods),
    log:
        f"{WORK}/logs/figure-concurrency.log",
    conda:
        "../../environment.yml"
    message:
        "speed-up by concurrency"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch harness.report.figures --config "$HARNESS_CONFIG"'
        " --only concurrency --concurrency {input:q} > >(tee -i {log:q}) 2>&1"
