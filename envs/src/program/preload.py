"""Imports modules once, then forks for each start: a packet with the start's environment, its stdin and its stdout."""
import ctypes
import importlib
import json
import os
import runpy
import signal
import socket
import sys

control, child = socket.socket(fileno=os.dup(0)), {signal.SIGCHLD}
for name in sys.argv.pop(1).split(","):
    importlib.import_module(name)
prctl = getattr(ctypes.CDLL(None), "prctl", None)


def reap(*_):
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        control.send(json.dumps({"pid": pid, "ended": status}).encode())


signal.signal(signal.SIGCHLD, reap)
while True:
    message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 2)
    if not message:
        sys.exit()
    # Its start is told before its end.
    signal.pthread_sigmask(signal.SIG_BLOCK, child)
    pid = os.fork()
    if pid == 0:
        break
    os.setpgid(pid, pid)
    control.send(json.dumps({"pid": pid, "ended": None}).encode())
    for descriptor in descriptors:
        os.close(descriptor)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, child)
if prctl:
    prctl(1, signal.SIGKILL)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
signal.pthread_sigmask(signal.SIG_UNBLOCK, child)
control.close()
for place, descriptor in enumerate(descriptors):
    os.dup2(descriptor, place)
    os.close(descriptor)
os.environ.update(json.loads(message))
sys.argv.pop(0)
sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
runpy.run_path(sys.argv[0], run_name="__main__")
