# Every number, then the tables: pure functions of records, timings and the numbers that papers print.


rule cells:
    input:
        plan.records(),
        plan.timings(),
        plan.marks("done.json"),
        reported_files(),
    output:
        f"{OUT}/cells.csv",
    params:
        settings=plan.cells(),
        code=plan.code("cells", plan.config.methods),
    log:
        f"{WORK}/logs/cells.log",
    conda:
        "../../environment.yml"
    message:
        "one row per target, method, temperature and suite"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch harness.report.cells'
        ' --config "$HARNESS_CONFIG" --out {output:q} > >(tee -i {log:q}) 2>&1'


rule table1:
    input:
        reported_files(),
        cells=f"{OUT}/cells.csv",
    output:
        csv=f"{OUT}/table1.csv",
        md=f"{OUT}/table1.md",
    params:
        code=plan.code("table1", plan.config.methods),
    log:
        f"{WORK}/logs/table1.log",
    conda:
        "../../environment.yml"
    message:
        "Table 1: mean acceptance length by suite"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch harness.report.table1'
        " --cells {input.cells:q} --out {output.csv:q} > >(tee -i {log:q}) 2>&1"


rule reproduction:
    input:
        reported_files(),
        cells=plan.measured(),
    output:
        f"{OUT}/reproduction.md",
    params:
        code=plan.code("reproduction"),
    log:
        f"{WORK}/logs/reproduction.log",
    conda:
        "../../environment.yml"
    message:
        "what papers print, beside what was measured"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch harness.report.reproduction'
        " --cells {input.cells:q} --out {output:q} > >(tee -i {log:q}) 2>&1"


rule table3:
    input:
        reported_files(),
        plan.records(plan.entrants),
        plan.marks("done.json", plan.entrants),
    output:
        csv=f"{OUT}/table3.csv",
        md=f"{OUT}/table3.md",
        comparisons=f"{OUT}/comparisons.csv",
        cells=f"{OUT}/ablations.csv",
    params:
        settings=plan.ablations(),
        code=plan.code("table3"),
    log:
        f"{WORK}/logs/table3.log",
    conda:
        "../../environment.yml"
    message:
        "Table 3: ablations and controls, and what each comparison gains"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch harness.report.table3 --config "$HARNESS_CONFIG"'
        " --out {output.csv:q} --comparisons {output.comparisons:q} --cells {output.cells:q} > >(tee -i {log:q}) 2>&1"


rule positions:
    input:
        plan.records(plan.drafting),
    output:
        f"{OUT}/positions.csv",
    params:
        settings=plan.positions(),
        code=plan.code("positions", plan.drafting),
    log:
        f"{WORK}/logs/positions.log",
    conda:
        "../../environment.yml"
    message:
        "what the verifier knew, and what was accepted, mask by mask"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch harness.report.positions'
        ' --config "$HARNESS_CONFIG" --out {output:q} > >(tee -i {log:q}) 2>&1'


rule latency:
    input:
        plan.timings(),
    output:
        f"{OUT}/latency.csv",
    params:
        settings=plan.latency(),
        code=plan.code("latency"),
    log:
        f"{WORK}/logs/latency.log",
    conda:
        "../../environment.yml"
    message:
        "where a round's time goes"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch harness.report.latency'
        ' --config "$HARNESS_CONFIG" --out {output:q} > >(tee -i {log:q}) 2>&1'
