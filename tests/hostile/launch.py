"""Starts commands for net.py: a process of its own, because a command's peak of memory includes that of the process
that started it. Reads a line of JSON per command, answers with [status, seconds of processor time, peak in bytes].
"""

import json
import os
import resource
import signal
import subprocess
import sys


def launch(words, folder, env, limits, clock):
    def restrict():
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, name), (value, value + (name == "RLIMIT_CPU")))

    with open(folder + "/.stdout", "wb") as out, open(folder + "/.stderr", "wb") as err:
        p = subprocess.Popen(
            words,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            preexec_fn=restrict,
            start_new_session=True,
        )
        signal.signal(signal.SIGALRM, lambda *_: p.kill())
        signal.alarm(clock)
        _, status, usage = os.wait4(p.pid, 0)
        signal.alarm(0)
        p.returncode = os.waitstatus_to_exitcode(status)
    return p.returncode, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10


for line in sys.stdin:
    print(json.dumps(launch(*json.loads(line))), flush=True)
