# The figures, one rule each: pure functions of tables and learning curves.


rule acceptance_figure:
    input:
        f"{OUT}/cells.csv",
    output:
        plan.figure_files("acceptance"),
    params:
        settings=plan.figure("acceptance"),
        code=plan.code("figures", plan.config.methods),
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
        plan.marks("learning_curve.csv", plan.entrants),
    output:
        plan.figure_files("training"),
    params:
        settings=plan.figure("training"),
        code=plan.code("figures", plan.entrants),
    log:
        f"{WORK}/logs/figure-training.log",
    conda:
        "../../environment.yml"
    message:
        "learning curves"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch harness.report.figures --config "$HARNESS_CONFIG"'
        " --only training > >(tee -i {log:q}) 2>&1"


rule position_figure:
    input:
        f"{OUT}/positions.csv",
    output:
        plan.figure_files("position"),
    params:
        settings=plan.figure("position"),
        code=plan.code("figures", plan.config.methods),
    log:
        f"{WORK}/logs/figure-position.log",
    conda:
        "../../environment.yml"
    message:
        "acceptance and the verifier's knowledge by position"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch harness.report.figures --config "$HARNESS_CONFIG"'
        " --only position --positions {input:q} > >(tee -i {log:q}) 2>&1"


rule dose_figure:
    input:
        f"{OUT}/comparisons.csv",
    output:
        plan.figure_files("dose"),
    params:
        settings=plan.figure("dose"),
        code=plan.code("figures", plan.entrants),
    log:
        f"{WORK}/logs/figure-dose.log",
    conda:
        "../../environment.yml"
    message:
        "gain over the baseline against what the verifier knew"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch harness.report.figures --config "$HARNESS_CONFIG"'
        " --only dose --comparisons {input:q} > >(tee -i {log:q}) 2>&1"


rule latency_figure:
    input:
        reported_files(),
        gpu_rounds(),
        latency=f"{OUT}/latency.csv",
    output:
        plan.figure_files("latency_breakdown"),
    params:
        settings=plan.figure("latency_breakdown"),
        code=plan.code("figures", plan.config.methods),
    log:
        f"{WORK}/logs/figure-latency.log",
    conda:
        "../../environment.yml"
    message:
        "where a round's time goes, the paper's Figure 3"
    shell:
        'exec "$HARNESS_PYTHON" -m harness.launch harness.report.figures --config "$HARNESS_CONFIG"'
        " --only latency_breakdown --latency {input.latency:q} > >(tee -i {log:q}) 2>&1"
