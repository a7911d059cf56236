"""The fork server: a warm interpreter that forks once per program. It is process 1 of the sandbox.

It talks to the judge over socket 3, one JSON message per packet. Programs, their input and their output are in-memory
files, whose descriptors come with the request. This process never reads their content, so a program's memory holds
nothing of earlier programs. A child restricts itself before it runs a line of the program; at startup the judge has
checked that each restriction holds.
"""
import _sitebuiltins, array, atexit, bisect, builtins, collections, contextlib, copy, ctypes, dataclasses, datetime, decimal, enum
import fractions, functools, gc, heapq, io, itertools, json, math, operator, os, queue, random, re, resource, select
import linecache, signal, socket, statistics, string, sys, textwrap, threading, time, traceback, types, typing

# Sixteen additional threads, the main thread, and this server, which counts too.
TASKS = 18
CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
MS_NOSUID, MS_NODEV = 2, 4
PR_SET_SECCOMP, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, SECCOMP_MODE_FILTER = 22, 47, 4, 2

libc = ctypes.CDLL(None, use_errno=True)


class Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_char_p)]


def call(name, *arguments):
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def restrict(request, files):
    """Gives up everything that the program must not have."""
    call("unshare", CLONE_NEWNS)
    options = f"size={request['scratch']},nr_inodes=1024,mode=700"
    call("mount", b"tmpfs", b"/tmp", b"tmpfs", MS_NOSUID | MS_NODEV, options.encode())
    os.chdir("/tmp")
    os.setsid()
    # The request's descriptors are above 5: the judge's socket is 3, and this setup's pipe is 4.
    for target, file in enumerate(files[1:4]):
        os.dup2(file, target)
    limits = {
        resource.RLIMIT_AS: request["memory"],
        resource.RLIMIT_CPU: int(request["cpu"]) + 2,
        resource.RLIMIT_FSIZE: request["output"],
        resource.RLIMIT_NPROC: TASKS,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_STACK: 64 << 20,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 64,
    }
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))
    call("prctl", PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header, nothing = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    call("capset", header, nothing)
    for code in FILTERS:
        call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(Filter(len(code) // 8, code)), 0, 0)


# Defines what the module `site` would, which is not imported.
for name in ("exit", "quit"):
    setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
builtins.help = _sitebuiltins._Helper()

# Names that the graders of LiveCodeBench and APPS predefine, and the names of `typing`: solutions and
# signatures use them without an import. Built-in functions come last.
MODULES = "string re datetime collections heapq bisect copy math random statistics itertools functools operator io sys json"
STARS = "\n".join(f"from {name} import *" for name in f"{MODULES} typing builtins".split())
PRELUDE = {}
exec(f"{STARS}\nimport {MODULES.replace(' ', ', ')}", PRELUDE)
PRELUDE = {name: value for name, value in PRELUDE.items() if not name.startswith("__")}

DESCRIPTORS = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
DESCRIPTORS.update({f"{folder}/{number}": number for folder in ("/dev/fd", "/proc/self/fd") for number in range(3)})


def descriptors():
    """Makes paths of standard streams work, such as /dev/stdin, although the root has no /proc."""
    opened, opened_by_number = io.open, os.open

    def open(file, *arguments, **named):
        number = DESCRIPTORS.get(os.fspath(file) if isinstance(file, os.PathLike) else file)
        file = file if number is None else os.dup(number)
        return opened(file, *arguments, **named)

    def open_by_number(path, *arguments, **named):
        number = DESCRIPTORS.get(os.fspath(path) if isinstance(path, os.PathLike) else path)
        return opened_by_number(path, *arguments, **named) if number is None else os.dup(number)

    io.open = builtins.open = functools.wraps(opened)(open)
    os.open = functools.wraps(opened_by_number)(open_by_number)


def limits():
    """Makes setrlimit accept values above the hard limit, and sets the limit instead."""
    set_limit, infinity = resource.setrlimit, resource.RLIM_INFINITY

    def setrlimit(limit, values):
        most = resource.getrlimit(limit)[1]
        least = lambda value: most if value == infinity or most != infinity and value > most else value
        return set_limit(limit, tuple(map(least, values)))

    resource.setrlimit = functools.wraps(set_limit)(setrlimit)


def interpreter(request, source):
    """Makes this interpreter look freshly started. If a function is to be called, the program is a module."""
    for number in (signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    random.seed(0)
    descriptors()
    limits()
    # For inspect and for tracebacks.
    linecache.cache["program.py"] = (lambda: source.decode("utf-8", "replace"),)
    module = types.ModuleType("__main__" if request["kind"] == "script" else "program")
    module.__builtins__ = builtins
    module.__file__ = "program.py"
    sys.modules["__main__"] = sys.modules[module.__name__] = module
    sys.argv = ["program.py"]
    return module.__dict__


def plain(value):
    """A value that JSON lacks: a set in order, anything else that has members as a list, exact numbers."""
    if isinstance(value, (set, frozenset)):
        try:
            return sorted(value)
        except TypeError:
            return list(value)
    if type(value).__module__ in ("fractions", "decimal"):
        return int(value) if value == int(value) else float(value)
    if hasattr(value, "__iter__") and not isinstance(value, (bytes, bytearray)):
        return list(value)
    raise TypeError(f"the function returned {type(value).__name__}, which is no value of JSON")


def answer(names, request, arguments, file):
    """Calls the function that the request names and writes its return value, as JSON, to the result file."""
    name, arguments = request["function"], json.loads(arguments)
    if name not in names and "Solution" in names:
        function = getattr(names["Solution"](), name)
    elif name in names:
        function = names[name]
    else:
        raise NameError(f"the program has no function {name!r}")
    result = function(*arguments)
    with open(file, "w", encoding="utf-8") as stream:
        json.dump(result, stream, default=plain)


def run(request, source, result):
    """Runs the program to its end; returns the exit code of a separate interpreter."""
    code = 0
    try:
        compiled = compile(source, "program.py", "exec")
        if request["kind"] != "compile":
            names = interpreter(request, source)
            if request["kind"] == "script":
                exec(compiled, names)
            else:
                # Reads the arguments before the program can.
                arguments = sys.stdin.read()
                names.update({name: getattr(typing, name) for name in typing.__all__})
                if request["kind"] == "solve":
                    names.update(PRELUDE)
                    sys.setrecursionlimit(50_000)
                    if hasattr(sys, "set_int_max_str_digits"):
                        sys.set_int_max_str_digits(50_000)
                exec(compiled, names)
                answer(names, request, arguments, result)
        threading._shutdown()
    except SystemExit as stop:
        code = stop.code
        if code is None:
            code = 0
        elif not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        code = 1
        # The first frame is this function.
        place = error.__traceback__ and error.__traceback__.tb_next
        traceback.print_exception(type(error), error, place, limit=8)
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except BaseException:
        code = code or 120
    try:
        sys.stderr.flush()
    except BaseException:
        pass
    os._exit(code & 255)


def child(request, files, setup):
    try:
        restrict(request, files)
        source = os.pread(files[0], request["source"], 0)
        keep = os.dup(files[4]) if request["function"] else None
        os.write(setup, b"k")
        if keep is not None:
            os.dup2(keep, 3)
        os.closerange(3 if keep is None else 4, 64)
        gc.enable()
    except BaseException as error:
        try:
            os.write(setup, str(error).encode())
        finally:
            os._exit(70)
    run(request, source, 3)


def watch(pid, request, control):
    """Waits for the program to end, or kills it at a limit, and reports which."""
    clock, limit = (~pid << 3) | 2, None
    end = time.monotonic() + request["wall"]
    ending = os.pidfd_open(pid)
    poll = select.poll()
    poll.register(ending, select.POLLIN)
    poll.register(control.fileno(), select.POLLIN)
    while True:
        left = request["cpu"] - time.clock_gettime(clock)
        wall = end - time.monotonic()
        if left <= 0 or wall <= 0:
            limit = "cpu" if left <= 0 else "wall"
            os.kill(pid, signal.SIGKILL)
            break
        events = dict(poll.poll(max(1, min(left / CORES, wall) * 1000)))
        if control.fileno() in events:
            os._exit(0)
        if ending in events:
            break
    _, status, usage = os.wait4(pid, 0)
    os.close(ending)
    return limit, status, usage


def serve(control, own):
    while True:
        message, files, _, _ = socket.recv_fds(control, 65536, 8)
        if not message:
            os._exit(0)
        request = json.loads(message)
        ready, setup = os.pipe()
        call("unshare", CLONE_NEWPID)
        pid = os.fork()
        if pid == 0:
            child(request, files, setup)
        call("setns", own, CLONE_NEWPID)
        os.close(setup)
        for file in files:
            os.close(file)
        message = os.read(ready, 4096)
        os.close(ready)
        if message != b"k":
            os.kill(pid, signal.SIGKILL)
            os.wait4(pid, 0)
            reply = {"failure": message.decode() or "the child died while it was set up"}
        else:
            limit, status, usage = watch(pid, request, control)
            reply = {
                "limit": limit,
                "exit": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
                "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
                "cpu": usage.ru_utime + usage.ru_stime,
            }
        control.send(json.dumps(reply).encode())


control = socket.socket(fileno=3)
try:
    FILTERS = [bytes.fromhex(code) for code in json.loads(control.recv(1 << 20))["filters"]]
    CORES = len(os.sched_getaffinity(0))
    own = os.pidfd_open(os.getpid())
    for name in list(os.environ):
        del os.environ[name]
    sys.path = [path for path in sys.path if path]
    gc.disable()
    gc.collect()
    gc.freeze()
    control.send(json.dumps({"version": sys.version.split()[0]}).encode())
    serve(control, own)
except BaseException as error:
    control.send(json.dumps({"failure": f"{type(error).__name__}: {error}"}).encode())
    os._exit(70)
