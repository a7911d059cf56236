# shellcheck shell=bash disable=SC2034,SC2154
# Set-up: the programs built, and the runtime library fetched.

set_up() { # TROUPE_BIN names a folder with built programs (a test's, or another machine's); nothing is built then
    local bin program missing features=()
    bin=${TROUPE_BIN:-$root/target/release}
    if [ -z "${TROUPE_BIN:-}" ]; then
        command -v cargo >/dev/null || die 69 'cargo is not installed' 'install Rust (rustup), or point TROUPE_BIN at built programs'
        [ -x "$bin/rollout" ] || printf 'pipeline.sh: building the programs, once: minutes, with Rust %s or newer\n' \
            "$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")" >&2
        [[ $policies != *=https://* ]] || features=(--features rollout/https)
        (cd "$root" && cargo build --release --workspace --bins --locked --quiet "${features[@]}") || die 1 'the build failed'
        [ "$ranks" = 1 ] || (cd "$root" && cargo build --release --workspace --features update/mpi --bin update-mpi --locked --quiet) ||
            die 1 'update-mpi cannot be built' 'it needs an MPI with mpicc: libopenmpi-dev, mpich, or a module of the cluster'
    fi
    for program in envs policy rollout group advantage update report $([ "$ranks" = 1 ] || echo update-mpi); do
        [ -x "$bin/$program" ] || die 69 "$bin has no program $program" 'cargo build --release --workspace --bins builds them, and with --features update/mpi update-mpi'
    done
    case $device in
        cuda*)
            # The programs find installed and fetched libraries by themselves, ONNX Runtime with CUDA among them: naming the
            # plain one would keep rollout off the GPU. Only what they do not find is fetched.
            if [ -z "${ORT_DYLIB_PATH:-}" ]; then
                missing=$("$bin/rollout" --version --format json | json '(lambda parts:
                    ["onnxruntime"] * (not lines[0]["onnxruntime_cuda"]["path"])
                    + sorted({parts[library["file"].split(".")[0]] for library in lines[0]["libraries"] if not library["path"]}))(
                    {"libcudart": "runtime", "libcurand": "runtime", "libcublas": "cublas", "libcublasLt": "cublas", "libnvrtc": "nvrtc"})') ||
                    exit $?
                # shellcheck disable=SC2086 # one argument a word
                [ -z "$missing" ] || "$root/fetch-cuda.sh" $missing >/dev/null || exit $?
            fi ;;
        *)
            export ORT_DYLIB_PATH=${ORT_DYLIB_PATH:-$("$root/fetch-runtime.sh")} || exit $?
            [ -n "$ORT_DYLIB_PATH" ] || die 69 'ONNX Runtime could not be fetched' 'see the message above, or set ORT_DYLIB_PATH to libonnxruntime.so' ;;
    esac
    [ "$setup" = no ] || exit 0
    export PATH=$bin:$PATH
    # remember_values reads two lines, and does not wait for the CUDA libraries: a Python finds them, the resolved one, not a shim.
    [ -n "$evaluate" ] || exec {version_pipe}< <(PATH=${python3%/*}:$PATH exec rollout --version)
}

part_read=programs
