#!/usr/bin/env python3
"""Packs built programs: a Python wheel that depends on ONNX Runtime's, and an archive to unpack anywhere.

    cargo build --release --workspace --bins && python3 scripts/package/package.py
    pip install dist/troupe_rl-*.whl && troupe pipeline

Both hold bin/ (the programs, without symbols, and the command `troupe`), share/troupe/ (the loop's scripts, examples, documents), manual
pages and completions for bash, fish and zsh. The wheel also installs the Python module `troupe_rl`, for environments (examples/troupe_rl).
It needs no Rust where it is installed; its Python is one for which ONNX Runtime has a wheel, 3.11 or newer. Equal files give equal packages.

The distribution is `troupe-rl`: `troupe` on PyPI is another project, with a module and a command of that name. Where both are installed, the
command `troupe-rl`, the same file, is still ours. Left out: building, and uploading anywhere.
"""
import argparse
import base64
import gzip
import hashlib
import io
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAMS = ["envs", "rollout", "group", "advantage", "update", "report", "policy"]
PARTS = ["troupe-pipeline"]  # of pipeline.sh: nobody types it
LICENSES = ["LICENSE-APACHE", "LICENSE-MIT"]
SHARED = ["pipeline.sh", "scripts/fetch-runtime.sh", "scripts/fetch-model.sh", "scripts/fetch-cuda.sh", "examples", "docs",
          "README.md", "CHANGELOG.md", "CITATION.cff", *LICENSES]
AUTHOR = "The Troupe authors"
CLASSIFIERS = [
    "Development Status :: 4 - Beta", "Environment :: Console", "Environment :: GPU :: NVIDIA CUDA", "Intended Audience :: Science/Research",
    "Operating System :: MacOS", "Operating System :: POSIX :: Linux", "Programming Language :: Python :: 3", "Programming Language :: Rust",
    "Topic :: Scientific/Engineering :: Artificial Intelligence", "Typing :: Typed",
]
KEYWORDS = "reinforcement learning,RL,multi-agent,LLM,agents,GRPO,LoRA,fine-tuning"
SUMMARY = "Trains teams of language-model agents with on-policy reinforcement learning, as small programs on a pipe"


def stop(message, hint):
    print(f"package.py: {message}\nhint: {hint}", file=sys.stderr)
    sys.exit(69)


def found(pattern, file):
    return re.search(pattern, (ROOT / file).read_text(), re.MULTILINE).group(1)


def stripped(program):
    """The program's bytes, without symbols if `strip` is installed."""
    with tempfile.TemporaryDirectory() as work:
        copy = pathlib.Path(work) / program.name
        shutil.copy(program, copy)
        if shutil.which("strip"):
            subprocess.run(["strip", copy], check=True)
        return copy.read_bytes()


def contents(folder):
    """(path below the installation, bytes, whether it is run) of every file."""
    for name in PROGRAMS + PARTS:
        if not (folder / name).is_file():
            stop(f"{folder} has no program {name}", "cargo build --release --workspace --bins builds them all")
        yield f"bin/{name}", stripped(folder / name), True
    with tempfile.TemporaryDirectory() as share:
        for name in PROGRAMS + PARTS:
            subprocess.run([folder / name], env={"TROUPE_MANUALS": share}, check=True)
        for file in sorted(path for path in pathlib.Path(share).rglob("*") if path.is_file()):
            yield f"share/{file.relative_to(share).as_posix()}", file.read_bytes(), False
    for name in ("troupe", "troupe-rl"):
        yield f"bin/{name}", (ROOT / "scripts/package/troupe").read_bytes(), True
    for name in SHARED:
        top = ROOT / name
        for file in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if file.is_file() and "__pycache__" not in file.parts:
                path = file.relative_to(ROOT).as_posix()
                yield f"share/troupe/{path}", as_installed(file), bool(file.stat().st_mode & 0o100)


def as_installed(file):
    """The file's bytes; documents and examples name the loop as it is called there, and the programs are on the path."""
    if file.suffix not in (".md", ".py"):
        return file.read_bytes()
    text = re.sub(r'(?m)^export PATH="\$PWD/target/release:\$PATH"\n', "", file.read_text())
    return re.sub(r"(?<![\w/])\./pipeline\.sh", "troupe pipeline", text).encode()


def platform_tag(files):
    """The tag of a wheel: the machine, and on Linux the oldest C library with all symbols that the programs use."""
    machine = platform.machine()
    if sys.platform == "darwin":
        return f"macosx_11_0_{machine}"
    asked = {int(minor) for _, data, run in files if run for minor in re.findall(rb"GLIBC_2\.(\d+)", data)}
    return f"manylinux_2_{max(asked)}_{machine}"


def wheel(files, version, runtime, out):
    tag = f"py3-none-{platform_tag(files)}"
    name = f"troupe_rl-{version}"
    info = f"{name}.dist-info"
    fields = [("Metadata-Version", "2.4"), ("Name", "troupe-rl"), ("Version", version), ("Summary", SUMMARY), ("Author", AUTHOR),
              ("License-Expression", "MIT OR Apache-2.0"), *(("License-File", file) for file in LICENSES), ("Keywords", KEYWORDS),
              *(("Classifier", line) for line in CLASSIFIERS), ("Requires-Python", ">=3.11"), ("Requires-Dist", f"onnxruntime=={runtime}"),
              ("Description-Content-Type", "text/markdown")]
    metadata = "".join(f"{field}: {value}\n" for field, value in fields) + "\n" + as_installed(ROOT / "README.md").decode()
    placed = {"bin": f"{name}.data/scripts", "share": f"{name}.data/data/share"}
    entries = [(f"{placed[path.split('/', 1)[0]]}/{path.split('/', 1)[1]}", data, run) for path, data, run in files]
    entries += [(f"troupe_rl/{file.name}", as_installed(file), False) for file in sorted((ROOT / "examples/troupe_rl").iterdir()) if file.is_file()]
    entries += [(f"{info}/licenses/{file}", (ROOT / file).read_bytes(), False) for file in LICENSES]
    entries += [(f"{info}/METADATA", metadata.encode(), False),
                (f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: package.py\nRoot-Is-Purelib: false\nTag: {tag}\n".encode(), False)]
    record = ""
    for path, data, _ in entries:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    entries.append((f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode(), False))
    target = out / f"{name}-{tag}.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data, run in entries:
            entry = zipfile.ZipInfo(path)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if run else 0o100644) << 16
            archive.writestr(entry, data)
    return target


def archive(files, version, out):
    name = f"troupe-rl-{version}-{platform.machine()}-{sys.platform}"
    target = out / f"{name}.tar.gz"
    with open(target, "wb") as raw, gzip.GzipFile(fileobj=raw, mode="wb", mtime=0) as packed, \
            tarfile.open(fileobj=packed, mode="w") as tar:
        for path, data, run in files:
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size, entry.mode = len(data), 0o755 if run else 0o644
            tar.addfile(entry, io.BytesIO(data))
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=pathlib.Path, default=ROOT / "target/release", help="where they were built")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "dist", help="where the packages go")
    arguments = parser.parse_args()
    version = found(r'^version = "(.*)"', "Cargo.toml")
    runtime = found(r"^version=(.*)", "scripts/fetch-runtime.sh")
    files = list(contents(arguments.programs))
    arguments.out.mkdir(parents=True, exist_ok=True)
    for package in (wheel(files, version, runtime, arguments.out), archive(files, version, arguments.out)):
        print(f"{package}  {package.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
