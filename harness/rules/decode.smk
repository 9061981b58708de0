# One file of records per target, method, suite, temperature and seed.


rule decode:
    input:
        lambda wildcards: plan.drafter(wildcards.target, wildcards.method, wildcards.seed),
    output:
        records=f"{OUT}/records/{{target}}/{{method}}/{{suite}}-T{{temperature}}-seed{{seed}}.jsonl",
        origin=f"{OUT}/records/{{target}}/{{method}}/{{suite}}-T{{temperature}}-seed{{seed}}.origin.json",
    params:
        settings=plan.decode,
        code=lambda wildcards: plan.code("decode", [wildcards.method], [wildcards.suite]),
    log:
        f"{WORK}/logs/decode-{{target}}-{{method}}-{{suite}}-T{{temperature}}-seed{{seed}}.log",
    threads: TORCH_THREADS
    conda:
        "../../environment.yml"
    message:
        "{wildcards.target} with {wildcards.method} answers {wildcards.suite} at T={wildcards.temperature}, "
        "seed {wildcards.seed}"
    shell:
        'drafter=({input:q}); exec "$HARNESS_PYTHON" -m harness.launch --threads {threads} harness.run_suite'
        ' --config "$HARNESS_CONFIG" --target {wildcards.target} --method {wildcards.method}'
        " --suite {wildcards.suite} --temperature {wildcards.temperature} --seed {wildcards.seed}"
        ' ${{drafter:+--drafter "$(dirname "$drafter")"}} --out {output.records:q}'
        " > >(tee -i {log:q}) 2>&1"
