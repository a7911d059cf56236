#!/usr/bin/env bash
# scripts/fetch-cuda.sh [nvrtc] [cublas] [runtime] [onnxruntime] [nccl]: fetches CUDA libraries once into the user's cache and prints
# its folder.
#
# For machines without a system-wide CUDA, and for the test that compiles the kernels without a GPU.
#   nvrtc         the compiler of our kernels (90 MB)
#   cublas        cuBLAS and cuBLASLt, matrix products (440 MB)
#   runtime       the CUDA runtime and cuRAND, which ONNX Runtime links (65 MB)
#   onnxruntime   ONNX Runtime with its CUDA provider, for rollout --device cuda (260 MB)
#   nccl          NCCL, with which the ranks of update-mpi exchange gradients between GPUs (200 MB)
# Without arguments: all but NCCL, which one GPU does not need. A decoder needs neither cuDNN nor cuFFT. The NVIDIA driver
# belongs to the system and is never fetched.
#
# The libraries come from the official wheels of NVIDIA and ONNX Runtime, which pip fetches from the package index that
# the user has configured and verifies by SHA-256. Each is unpacked and moved into place atomically, so an interrupted or
# concurrent fetch does no harm. Needs python3 with pip.
set -euo pipefail

stop() {
    printf 'fetch-cuda.sh: %s\nhint: %s\n' "$1" "$2" >&2
    exit "${3:-69}"
}
[ "$(uname -s) $(uname -m)" = 'Linux x86_64' ] ||
    stop "no CUDA libraries are known for $(uname -s) $(uname -m)" 'install CUDA 13 and set CUDA_PATH to it'
for part in "$@"; do
    case $part in
        nvrtc | cublas | runtime | onnxruntime | nccl) ;;
        *) stop "$part: no such part" 'parts are nvrtc, cublas, runtime, onnxruntime and nccl' 2 ;;
    esac
done
command -v python3 >/dev/null || stop 'python3 was not found' 'install Python with pip, or install CUDA 13 and set CUDA_PATH to it'
cache=${XDG_CACHE_HOME:-${HOME:?fetch-cuda.sh: neither XDG_CACHE_HOME nor HOME is set}/.cache}/troupe
mkdir -p "$cache" 2>/dev/null || {
    printf 'fetch-cuda.sh: %s cannot be made\nhint: set XDG_CACHE_HOME to a folder that you may write to\n' "$cache" >&2
    exit 74
}

python3 - "$cache" "${@:-all}" <<'PYTHON'
import fcntl, os, pathlib, shutil, subprocess, sys, tempfile, zipfile

# Part, package, version, SHA-256 of the wheel. CUDA 13.0 is the oldest version that knows every architecture the kernels
# are compiled for; drivers of the 580 series run its output.
WHEELS = [
    ("nvrtc", "nvidia-cuda-nvrtc", "13.0.88", "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575"),
    ("cublas", "nvidia-cublas", "13.0.2.14", "0cf238ffdbe46c00cb9aa98e7bca745c223a5ca5a53e686ac8b3e5a08fe80d6c"),
    ("onnxruntime", "onnxruntime-gpu", "1.31.1", "05d548956197b9d01f59b625de740e0d6be3593f874e241a12dc0362650ecdf7"),
    ("runtime", "nvidia-cuda-runtime", "13.0.96", "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548"),
    ("runtime", "nvidia-curand", "10.4.0.35", "1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc"),
    ("nccl", "nvidia-nccl-cu13", "2.28.9", "e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42"),
]

cache, *parts = sys.argv[1:]
wanted = {part for part, *_ in WHEELS} - {"nccl"} if parts == ["all"] else set(parts)
folder = pathlib.Path(cache) / "cuda-13.0"


def stop(message, hint):
    print(f"fetch-cuda.sh: {message}\nhint: {hint}", file=sys.stderr)
    sys.exit(69)


# The kernel releases the lock with the process that holds it, however it ends.
lock = open(pathlib.Path(cache) / "cuda-13.0.lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
for part, package, version, checksum in WHEELS:
    target = folder / f"{package}-{version}"
    if part not in wanted or target.exists():
        continue
    print(f"fetch-cuda.sh: fetching {package} {version}", file=sys.stderr)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as work:
        requirement = pathlib.Path(work) / "requirement.txt"
        requirement.write_text(f"{package}=={version} --hash=sha256:{checksum}\n")
        platforms = [argument for tag in ("2_28", "2_27", "2_18", "2_17", "2_12") for argument in ("--platform", f"manylinux_{tag}_x86_64")]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                   "--require-hashes", "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp",
                   "--abi", "cp312", *platforms, "--platform", "manylinux2014_x86_64",
                   "--platform", "manylinux2010_x86_64", "--dest", work,
                   "--requirement", str(requirement)]
        if subprocess.run(command, stdout=sys.stderr).returncode != 0:
            stop(f"pip could not download {package} {version}",
                 "check the network and `python3 -m pip --version`, or install CUDA 13 and set CUDA_PATH to it")
        ready = pathlib.Path(work) / "ready"
        ready.mkdir()
        with zipfile.ZipFile(next(pathlib.Path(work).glob("*.whl"))) as wheel:
            for member in wheel.namelist():
                name = pathlib.PurePosixPath(member).name
                # Not the twins of NVRTC, nor what ONNX Runtime has for TensorRT and for Python.
                wanted_library = ".so" in name and not any(part in name for part in (".alt.", "tensorrt", "pybind"))
                if wanted_library or name.startswith(("License", "LICENSE", "ThirdParty")):
                    with wheel.open(member) as source, open(ready / name, "wb") as written:
                        shutil.copyfileobj(source, written)
                        written.flush()
                        os.fsync(written.fileno())
        folder.mkdir(exist_ok=True)
        os.rename(ready, target)
print(folder)
PYTHON
