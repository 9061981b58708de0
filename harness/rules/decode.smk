# One file of records per target, method, suite, temperature and seed; one job answers all suites.


rule decode:
    input:
        lambda wildcards: plan.drafter(wildcards.target, wildcards.method, wildcards.seed),
    output:
        records=plan.records_of("{target}", "{method}", "{temperature}", "{seed}"),
        origins=plan.origins_of("{target}", "{method}", "{temperature}", "{seed}"),
    params:
        settings=plan.decode,
        code=lambda wildcards: plan.code("decode", [wildcards.method]),
        suites=" ".join(plan.config.suites),
    log:
        f"{WORK}/logs/decode-{{target}}-{{method}}-T{{temperature}}-seed{{seed}}.log",
    threads: plan.threads("decode", TORCH_THREADS)
    conda:
        "../../environment.yml"
    message:
        "{wildcards.target} with {wildcards.method} answers every suite at T={wildcards.temperature}, "
        "seed {wildcards.seed}"
    shell:
        'drafter=({input:q}); exec "$HARNESS_PYTHON" -m harness.launch --threads {threads} harness.run_suite'
        ' --config "$HARNESS_CONFIG" --target {wildcards.target} --method {wildcards.method}'
        " --suites {params.suites} --temperature {wildcards.temperature} --seed {wildcards.seed}"
        ' ${{drafter:+--drafter "$(dirname "$drafter")"}} --out "$(dirname {output.records[0]:q})"'
        " > >(tee -i {log:q}) 2>&1"
