#!/usr/bin/env python3
"""slim_provider.py SOURCE TARGET [--architecture 90] [--without PATTERN]: reduces a CUDA library to one kind of GPU.

For carrying ONNX Runtime's CUDA provider to a machine with a GPU. Most of it is machine code for six architectures, and most of
that belongs to operators that no decoder here uses. The result keeps one architecture's modules, except those whose kernels all
have names that match the pattern (needs the program `zstd`; without it no module is dropped by name). Removed modules become
zeros, which compress to almost nothing, so addresses in the library do not change.

Checked with driver 580 on an H100.

A fat binary (section .nv_fatbin) is a sequence of containers, one for each module: a header of 16 bytes (magic, version, size of
the header, size of the rest) and entries, each with a header (kind, version, sizes, architecture) before its code.
"""

import argparse
import pathlib
import re
import shutil
import struct
import subprocess

MAGIC = 0xBA55ED50
MACHINE_CODE = 2
ZSTD = b"\x28\xb5\x2f\xfd"


def section(data, wanted):
    """The start and end of a section of an ELF file."""
    (table,) = struct.unpack_from("<Q", data, 40)
    count, names = struct.unpack_from("<HH", data, 60)
    headers = [struct.unpack_from("<IIQQQQ", data, table + 64 * number) for number in range(count)]
    for header in headers:
        start = headers[names][4] + header[0]
        if data[start : data.index(0, start)] == wanted:
            return header[4], header[4] + header[5]
    raise SystemExit(f"slim_provider.py: no section {wanted.decode()}")


def entries(data, start, end):
    """The entries of a container: kind, architecture, start, start and length of the code, end."""
    while start < end:
        kind, _, header, padded, length = struct.unpack_from("<HHIQI", data, start)
        (architecture,) = struct.unpack_from("<I", data, start + 28)
        following = start + header + padded
        yield kind, architecture, start, start + header, length, following
        start = following


def kernels(code):
    """Names of the kernels in machine code; empty if it cannot be read."""
    if code[:4] == ZSTD:
        if not shutil.which("zstd"):
            return set()
        code = subprocess.run(["zstd", "-dcq"], input=code, capture_output=True, check=True).stdout
    return set(re.findall(rb"\.text\.(_Z\w+)", code))


def slim(data, architecture, without):
    """Zeroes unwanted modules in place; returns the number of modules, of zeroed ones, and the remaining bytes."""
    at, end = section(data, b".nv_fatbin")
    modules = empty = kept = 0
    while at < end:
        magic, _, header, size = struct.unpack_from("<IHHQ", data, at)
        if magic != MAGIC:
            at += 8
            continue
        first, last, wanted = at + header, at + header + size, b""
        for kind, own, start, code, length, following in entries(data, first, last):
            if kind != MACHINE_CODE or own != architecture:
                continue
            names = kernels(bytes(data[code : code + length])) if without else set()
            if not (names and all(without.search(name) for name in names)):
                wanted += bytes(data[start:following])
        data[first:last] = wanted + bytes(size - len(wanted))
        struct.pack_into("<Q", data, at + 8, len(wanted))
        modules, empty, kept = modules + 1, empty + (not wanted), kept + len(wanted)
        at = last
    return modules, empty, kept


def main():
    parser = argparse.ArgumentParser(description="A CUDA library with the machine code of one architecture.")
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("--architecture", type=int, default=90, help="compute capability, times ten [default: 90]")
    parser.add_argument("--without", default="", help="leave out modules whose kernels all match this pattern")
    arguments = parser.parse_args()
    data = bytearray(arguments.source.read_bytes())
    without = re.compile(arguments.without.encode(), re.IGNORECASE) if arguments.without else None
    modules, empty, kept = slim(data, arguments.architecture, without)
    if not kept:
        raise SystemExit(f"slim_provider.py: {arguments.source}: no code for architecture {arguments.architecture}")
    arguments.target.write_bytes(data)
    print(f"slim_provider.py: {modules} modules, {empty} emptied, {kept / 1e6:.1f} MB of machine code kept")


if __name__ == "__main__":
    main()
