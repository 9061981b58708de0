# The figures: pure functions of cells, records and learning curves.


rule figures:
    input:
        f"{OUT}/cells.csv",
        plan.records(),
        plan.marks("learning_curve.csv"),
    output:
        touch(f"{FIGURES}/.done"),
    params:
        folder=FIGURES,
        settings=plan.figure(),
        code=plan.code("figures"),
    log:
        f"{WORK}/logs/figures.log",
    conda:
        "../../environment.yml"
    message:
        "figures"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch harness.report.figures'
        ' --config "$HARNESS_CONFIG" --out {params.folder:q} > >(tee -i {log:q}) 2>&1'
