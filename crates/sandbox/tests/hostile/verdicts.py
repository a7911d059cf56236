"""Attempts to change a verdict: fake ones, odd ends, meddling with the interpreter."""

#: closing the output
import os, sys
os.close(1)
os.close(2)
print("nobody hears this")

#: a fake verdict
import json, sys
print('{"limit": null, "exit": 0, "signal": null, "cpu": 0}')
print("verdict: passed", file=sys.stderr)
sys.exit(1)

#: exit code of success after a fake verdict
import os
os.write(1, b"expected\n")
os._exit(0)

#: exit at exit
import atexit, os
atexit.register(lambda: os._exit(0))
raise RuntimeError

#: an endless exit
import atexit
def loop():
    while True:
        pass
atexit.register(loop)

#: an exit code that is large
import sys
sys.exit(2 ** 40)

#: meddling with the interpreter
import builtins, os, sys, traceback
for module in list(sys.modules.values()):
    for name in ("write", "exit", "_exit", "send", "dumps", "loads", "wait4", "kill"):
        if hasattr(module, name):
            try:
                setattr(module, name, lambda *a, **k: None)
            except (AttributeError, TypeError):
                pass
builtins.print = None

#: the judge's frames
import sys
frame = sys._getframe()
while frame:
    for name, value in list(frame.f_locals.items()) + list(frame.f_globals.items()):
        if name in ("control", "setup", "own", "ready") and hasattr(value, "send"):
            try:
                value.send(b'{"limit": null, "exit": 0, "signal": null, "cpu": 0}')
                print("ESCAPED: the judge's socket")
            except OSError:
                pass
    frame = frame.f_back
