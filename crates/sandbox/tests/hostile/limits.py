"""Attempts to use more than is allowed, or to outlive the judge: memory, time, output, processes."""

#: fork bomb
import os
while True:
    os.fork()

#: fork bomb of threads
import threading, time
def more():
    while True:
        threading.Thread(target=more).start()
more()

#: memory bomb
x = []
while True:
    x.append(bytearray(10 ** 7))

#: memory bomb in an anonymous mapping
import mmap
x = []
while True:
    x.append(mmap.mmap(-1, 1 << 26))
    x[-1][:] = b"x" * (1 << 26)

#: memory bomb in files
import os
for number in range(10 ** 6):
    with open(f"/tmp/{number}", "wb") as file:
        file.write(b"x" * 10 ** 6)
    if number > 40:
        print("ESCAPED: more than the directory holds")
        break

#: inode bomb
for number in range(10 ** 6):
    open(f"/tmp/{number}", "w").close()
    if number > 2000:
        print("ESCAPED: more files than allowed")
        break

#: huge sparse file
import os
with open("/tmp/sparse", "wb") as file:
    os.truncate(file.fileno(), 1 << 40)
    print("ESCAPED")

#: output bomb
while True:
    print("x" * 100000)

#: output grown without writing
import os
for file in (0, 1, 2):
    try:
        os.ftruncate(file, 1 << 30)
        os.write(2, b"ESCAPED")
    except OSError:
        pass

#: infinite loop
while True:
    pass

#: infinite loop in threads
import threading
def loop():
    while True:
        pass
for _ in range(4):
    threading.Thread(target=loop).start()

#: sleep
import time
time.sleep(1000)

#: ignored signals
import signal, time
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    time.sleep(1)

#: stopped
import os, signal, time
os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(1000)

#: more processor time by asking
import resource
for limit in (resource.RLIMIT_CPU, resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):
    try:
        resource.setrlimit(limit, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print("ESCAPED:", limit)
    except (OSError, ValueError):
        pass
while True:
    pass

#: double fork daemon
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for file in range(3):
            os.close(file)
        time.sleep(1000)
    os._exit(0)
print("parent is done")

#: many daemons
import os, time
for _ in range(6):
    try:
        if os.fork() == 0:
            os.setsid()
            time.sleep(1000)
    except OSError:
        pass

#: a child that keeps the output open
import os, time
if os.fork() == 0:
    time.sleep(0.2)
    while True:
        os.write(1, b"later\n")
        time.sleep(0.01)

#: crash
import ctypes
ctypes.string_at(0)

#: deep recursion
import sys
sys.setrecursionlimit(10 ** 9)
def f():
    return f()
f()

#: deep recursion in C
x = []
for _ in range(10 ** 6):
    x = [x]
repr(x)

#: a program that does not parse
import sys
exec("(" * 10000)

#: signals to itself
import os, signal
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
signal.signal(signal.SIGALRM, lambda *a: os.kill(os.getpid(), signal.SIGUSR1))
signal.signal(signal.SIGUSR1, lambda *a: None)
while True:
    pass
