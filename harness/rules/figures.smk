# The figures, one rule each: pure functions of cells and learning curves.


rule acceptance_figure:
    input:
        f"{OUT}/cells.csv",
    output:
        plan.figure_files("acceptance"),
    params:
        settings=plan.figure(),
        code=plan.code("figures"),
    log:
        f"{WORK}/logs/figure-acceptance.log",
    conda:
        "../../environment.yml"
    message:
        "acceptance by suite, the paper's Figure 1"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch harness.report.figures --config "$HARNESS_CONFIG"'
        " --only acceptance --cells {input:q} > >(tee -i {log:q}) 2>&1"


rule training_figure:
    input:
        plan.marks("learning_curve.csv"),
    output:
        plan.figure_files("training"),
    params:
        settings=plan.figure(),
        code=plan.code("figures"),
    log:
        f"{WORK}/logs/figure-training.log",
    conda:
        "../../environment.yml"
    message:
        "learning curves"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch harness.report.figures --config "$HARNESS_CONFIG"'
        " --only training > >(tee -i {log:q}) 2>&1"
