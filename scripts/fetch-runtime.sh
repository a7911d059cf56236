#!/usr/bin/env bash
# fetch-runtime.sh: fetches the ONNX Runtime library once into the user's cache and prints its path.
#
# The library comes from the official Python wheel, which pip fetches from the package index that the user has
# configured. It is verified and moved into place atomically, so an interrupted or concurrent fetch does no harm.
# Needs python3 with pip, or only bash if the library is already there.
set -euo pipefail

# The only place that names the version: rollout reads this line when it is built.
version=1.31.1

machine=$(uname -m)
case "$(uname -s) $machine" in
    'Linux x86_64') platform=manylinux_2_28_x86_64 checksum=fc44112fbe06d7d689c57e11d3862031f64711007e4ee020f8eed5185fd2c1d3 ;;
    'Linux aarch64') platform=manylinux_2_28_aarch64 checksum=8aa3b76b28c778a2b1dd660d34161adb1d508c9ccd04ff9dc80e26eca5df8467 ;;
    'Darwin arm64') platform=macosx_14_0_arm64 checksum=d586cbe89effc085a09d3341b3cfbd5c322517f9d397aeb20814af21433f2b36 ;;
    *)
        printf 'fetch-runtime.sh: no ONNX Runtime %s is known for %s %s\n' "$version" "$(uname -s)" "$machine" >&2
        printf 'hint: set ORT_DYLIB_PATH to a library of your own\n' >&2
        exit 69
        ;;
esac

cache=${XDG_CACHE_HOME:-${HOME:?fetch-runtime.sh: neither XDG_CACHE_HOME nor HOME is set}/.cache}/troupe
folder=$cache/onnxruntime-$version
case $platform in
    macosx*) library=$folder/libonnxruntime.$version.dylib ;;
    *) library=$folder/libonnxruntime.so.$version ;;
esac

if [ ! -f "$library" ]; then
    command -v python3 >/dev/null || {
        printf 'fetch-runtime.sh: python3 was not found\nhint: install Python with pip, or set ORT_DYLIB_PATH to a library of your own\n' >&2
        exit 69
    }
    mkdir -p "$cache" 2>/dev/null || {
        printf 'fetch-runtime.sh: %s cannot be made\nhint: set XDG_CACHE_HOME to a folder that you may write to\n' "$cache" >&2
        exit 74
    }
    python3 - "$version" "$platform" "$checksum" "$cache" "$folder" "$library" <<'PYTHON'
import fcntl, hashlib, os, pathlib, shutil, subprocess, sys, tempfile, zipfile

version, platform, checksum, cache, folder, library = sys.argv[1:]


def stop(message, hint):
    print(f"fetch-runtime.sh: {message}\nhint: {hint}", file=sys.stderr)
    sys.exit(69)


# The kernel releases the lock with the process that holds it, however it ends.
lock = open(pathlib.Path(cache) / f"onnxruntime-{version}.lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
if os.path.exists(library):
    sys.exit(0)
print(f"fetch-runtime.sh: fetching ONNX Runtime {version}", file=sys.stderr)
with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as work:
    # The library does not depend on the Python version; naming one selects the same wheel everywhere.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp", "--abi", "cp312",
               "--platform", platform, "--dest", work, f"onnxruntime=={version}"]
    if subprocess.run(command, stdout=sys.stderr).returncode != 0:
        stop(f"pip could not download onnxruntime {version}",
             "check the network and `python3 -m pip --version`, or set ORT_DYLIB_PATH to a library of your own")
    ready = pathlib.Path(work) / "ready"
    ready.mkdir()
    with zipfile.ZipFile(next(pathlib.Path(work).glob("*.whl"))) as wheel:
        for member in (f"capi/{pathlib.Path(library).name}", "LICENSE", "ThirdPartyNotices.txt"):
            with wheel.open(f"onnxruntime/{member}") as source:
                with open(ready / pathlib.Path(member).name, "wb") as target:
                    shutil.copyfileobj(source, target)
    found = hashlib.sha256((ready / pathlib.Path(library).name).read_bytes()).hexdigest()
    if found != checksum:
        stop(f"the library's SHA-256 is {found}, not {checksum}",
             "the package index gave something else than the maker published; nothing was installed")
    for file in ready.iterdir():
        with open(file, "rb") as written:
            os.fsync(written.fileno())
    # A folder without the library is a leftover.
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(ready, folder)
PYTHON
fi
printf '%s\n' "$library"
