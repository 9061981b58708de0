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
        code=plan.code("cells"),
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
        code=plan.code("table1"),
    log:
        f"{WORK}/logs/table1.log",
    conda:
        "../../environment.yml"
    message:
        "Table 1: mean acceptance length by suite"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch harness.report.table1'
        " --cells {input.cells:q} --out {output.csv:q} > >(tee -i {log:q}) 2>&1"
