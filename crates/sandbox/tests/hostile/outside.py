"""Attempts to reach out of the sandbox: network, files, other processes, privileges."""

#: network
import socket
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK, socket.AF_PACKET):
    try:
        socket.socket(family, socket.SOCK_STREAM)
        print("ESCAPED: a socket")
    except OSError:
        pass
try:
    socket.create_connection(("127.0.0.1", 22), 0.1)
    print("ESCAPED: a connection")
except OSError:
    pass

#: name look-up
import socket
try:
    print("ESCAPED", socket.getaddrinfo("localhost", 80))
except OSError:
    pass

#: download
import urllib.request
try:
    urllib.request.urlopen("http://example.com", timeout=0.2)
    print("ESCAPED")
except OSError:
    pass

#: files of the system
for path in ["/etc/passwd", "/etc/shadow", "/etc/hosts", "/proc/self/environ", "/proc/1/environ", "/proc/1/mem",
             "/proc/kcore", "/sys/kernel", "/dev/mem", "/dev/sda", "/dev/vda", "/dev/tty", "/dev/shm", "/run",
             "/var/log", "/bin/sh", "/usr/bin/env", "/boot", "/.dockerenv"]:
    import os
    try:
        os.stat(path)
        print("ESCAPED:", path)
    except OSError:
        pass

#: home directory
import glob, os
for path in ["@HOME@/.bashrc", "@HOME@/.ssh", "@HOME@/.cache", "@HOME@/.profile", "@HOME@/.cargo"]:
    if os.path.exists(path):
        print("ESCAPED:", path)
if "HOME" in os.environ or os.path.exists(os.path.expanduser("~/.bashrc")):
    print("ESCAPED: home")

#: environment variables
import ctypes, os
pointer = ctypes.POINTER(ctypes.c_char_p).in_dll(ctypes.CDLL(None), "environ")
if os.environ or (pointer and pointer[0]):
    print("ESCAPED:", dict(os.environ))

#: writing outside
import os
for place in ["/", "/usr/lib", "/lib", "/dev", "/dev/shm", "/var/tmp", "@HOME@", "..", "/tmp/../.."]:
    try:
        open(os.path.join(place, "escapee"), "w").write("x")
        print("ESCAPED:", place)
    except OSError:
        pass

#: a file that would be seen outside
open("/tmp/escapee", "w").write("x")

#: changing the libraries
import os
for path in [os.__file__, "/lib", "/usr/lib"]:
    for attempt in (os.unlink, os.rmdir, lambda p: os.chmod(p, 0o777), lambda p: os.rename(p, "/tmp/x"),
                    lambda p: open(p, "a"), lambda p: os.utime(p)):
        try:
            attempt(path)
            print("ESCAPED:", path)
        except OSError:
            pass

#: setsid
import os
try:
    os.setsid()
except OSError:
    pass
try:
    os.setpgid(0, 0)
except OSError:
    pass
while True:
    pass

#: subprocess
import subprocess, sys
for command in (["/bin/sh", "-c", "echo ESCAPED"], ["id"], ["python3", "-c", "print('ESCAPED')"]):
    try:
        subprocess.run(command, timeout=0.3)
    except OSError:
        pass

#: shell
import os
if os.system("echo ESCAPED") == 0:
    print("ESCAPED")

#: kill the parent
import os, signal
for number in (os.getppid(), 2, 3, @PID@):
    for which in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
        if number == 0:
            continue
        try:
            os.kill(number, which)
            print("ESCAPED:", number)
        except OSError:
            pass

#: kill everybody
import os, signal
try:
    os.kill(-1, signal.SIGKILL)
except OSError:
    pass

#: kill its own group
import os, signal
os.kill(0, signal.SIGKILL)

#: trace others
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for request in (0, 16, 0x4206):
    for number in (0, 1, 2, @PID@):
        if libc.ptrace(request, number, None, None) == 0:
            print("ESCAPED: ptrace", request, number)

#: memory of others
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(16)
ours, theirs = Piece(ctypes.addressof(buffer), 16), Piece(ctypes.addressof(buffer), 16)
for number in (1, 2, @PID@):
    if libc.process_vm_readv(number, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0) >= 0:
        print("ESCAPED: process_vm_readv", number)

#: raw system calls
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
if platform.machine() == "x86_64":
    # ptrace, syslog, mknod, pivot_root, chroot, mount, umount2, swapon, reboot, sethostname, init_module, acct, keyctl,
    # add_key, unshare, setns, perf_event_open, open_by_handle_at, bpf, userfaultfd, memfd_create, io_uring_setup, pidfd_open,
    # clone3, mount_setattr, open_tree, fsopen, landlock_create_ruleset, shmget, semget, msgget, prctl, personality, socket
    for number in (101, 103, 133, 155, 161, 165, 166, 167, 169, 170, 175, 163, 250, 248, 272, 308, 298, 304, 321, 323,
                   319, 425, 434, 435, 442, 428, 430, 444, 29, 64, 68, 157, 135, 41):
        if libc.syscall(number, 0, 0, 0, 0, 0, 0) >= 0:
            print("ESCAPED: system call", number)

#: system calls of the other numbering
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
if platform.machine() == "x86_64":
    if libc.syscall(0x40000000 + 41, 2, 1, 0) >= 0:
        print("ESCAPED: x32")

#: system calls of another architecture
import ctypes, mmap, platform
if platform.machine() == "x86_64":
    # mov eax, 20 (getpid of i386); int 0x80; ret
    code = b"\xb8\x14\x00\x00\x00\xcd\x80\xc3"
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    if ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))() > 0:
        print("ESCAPED: int 0x80")

#: new namespaces
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for flag in (0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    if libc.unshare(flag) == 0:
        print("ESCAPED: unshare", hex(flag))
    number = libc.syscall(56, flag | 17, 0, 0, 0, 0)
    if number == 0:
        os._exit(0)
    if number > 0:
        print("ESCAPED: clone", hex(flag))

#: becoming root
import os
for attempt in (lambda: os.setuid(0), lambda: os.setgid(0), lambda: os.setgroups([0]), lambda: os.seteuid(0),
                lambda: os.setresuid(0, 0, 0), lambda: os.chown("/tmp", 0, 0)):
    try:
        attempt()
        print("ESCAPED")
    except OSError:
        pass

#: mounting and leaving the root
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
for result in (libc.mount(b"proc", b"/tmp", b"proc", 0, None), libc.mount(b"/", b"/tmp", None, 4096, None),
               libc.umount2(b"/tmp", 2), libc.umount2(b"/usr/lib", 2), libc.mount(None, b"/", None, 32 | 4096, None)):
    if result == 0:
        print("ESCAPED: mount")
for _ in range(20):
    os.chdir("..")
if os.path.exists("etc/passwd"):
    print("ESCAPED: root")
try:
    os.mkdir("/tmp/jail")
    os.chroot("/tmp/jail")
    print("ESCAPED: chroot")
except OSError:
    pass

#: inherited descriptors
import os
for number in range(3, 2000):
    try:
        os.fstat(number)
        print("ESCAPED: descriptor", number)
    except OSError:
        pass

#: writing to descriptors
import os
for number in range(3, 64):
    try:
        os.write(number, b'{"limit": null, "exit": 0, "signal": null, "cpu": 0}')
        print("ESCAPED: descriptor", number)
    except OSError:
        pass

#: symbolic links
import os
for target in ["/etc/passwd", "../../../../etc/passwd"] + [os.path.join("/proc", process, "root", "etc", "passwd") for process in ("self", "1")]:
    os.symlink(target, "/tmp/link")
    try:
        print("ESCAPED:", open("/tmp/link").read())
    except OSError:
        pass
    os.unlink("/tmp/link")
try:
    os.link(os.__file__, "/tmp/hard")
    print("ESCAPED: a hard link across")
except OSError:
    pass

#: devices and pipes
import os, stat
for attempt in (lambda: os.mknod("/tmp/d", 0o600 | stat.S_IFBLK, os.makedev(254, 0)),
                lambda: os.mknod("/tmp/m", 0o600 | stat.S_IFCHR, os.makedev(1, 1))):
    try:
        attempt()
        print("ESCAPED: a device")
    except OSError:
        pass

#: terminal input
import fcntl, os, termios
for file in range(3):
    try:
        fcntl.ioctl(file, termios.TIOCSTI, b"x")
        print("ESCAPED: terminal")
    except OSError:
        pass
