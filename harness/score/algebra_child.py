"""Run by `algebra.py` in a process of its own: compares answers with math-verify, a line in, a line out, until the
input ends.

Knows nothing of graders. Everything is imported where the process starts, so that the module itself costs nothing.
"""

import json
import logging
import os
import signal
import sys


def main() -> None:
    setup = json.loads(sys.stdin.readline())
    sys.path[:] = setup["path"]
    from harness.score.child import PR_SET_PDEATHSIG, limit, prctl

    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != setup["parent"]:
        return
    import resource

    limit(resource.RLIMIT_AS, setup["memory"])
    limit(resource.RLIMIT_CORE, 0)
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):  # whatever a library prints is no reply
        os.dup2(null, stream)
    logging.disable()
    from math_verify import parse, verify

    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        try:
            gold, answer = parse(job["gold"], parsing_timeout=None), parse(job["answer"], parsing_timeout=None)
            equal = bool(gold and answer) and bool(verify(gold, answer, timeout_seconds=None))
            reply = {"gold": bool(gold), "answer": bool(answer), "equal": equal}
        except Exception as error:  # a grader that raises would end a run over one strange answer
            reply = {"gold": True, "answer": True, "equal": False, "error": repr(error)[:200]}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
