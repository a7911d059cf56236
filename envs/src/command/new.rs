//! `envs new`: writes an environment in Python to start from, which passes `envs check` unchanged.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use record::failure::{Failure, Result};
use record::stage::note;

const SKELETON: &str = include_str!("../../../examples/skeleton.py");
/// The module `troupe_rl`, for a Python that has not installed it.
const MODULE: [(&str, &str); 3] = [
    ("__init__.py", include_str!("../../../examples/troupe_rl/__init__.py")),
    ("check.py", include_str!("../../../examples/troupe_rl/check.py")),
    ("py.typed", include_str!("../../../examples/troupe_rl/py.typed")),
];

/// Modules of Python's standard library. A program of the same name would shadow the module in its imports.
const PYTHON: &str = "\
    abc aifc annotationlib antigravity argparse array ast asynchat asyncio asyncore atexit audioop \
    base64 bdb binascii bisect builtins bz2 calendar cgi cgitb chunk cmath cmd code codecs codeop \
    collections colorsys compileall compression concurrent configparser contextlib contextvars copy \
    copyreg crypt csv ctypes curses dataclasses datetime dbm decimal difflib dis distutils doctest email \
    encodings ensurepip enum errno faulthandler fcntl filecmp fileinput fnmatch fractions ftplib \
    functools gc genericpath getopt getpass gettext glob graphlib grp gzip hashlib heapq hmac html http \
    idlelib imaplib imghdr imp importlib inspect io ipaddress itertools json keyword lib2to3 linecache \
    locale logging lzma mailbox mailcap marshal math mimetypes mmap modulefinder msilib msvcrt \
    multiprocessing netrc nis nntplib nt ntpath nturl2path numbers opcode operator optparse os \
    ossaudiodev pathlib pdb pickle pickletools pipes pkgutil platform plistlib poplib posix posixpath \
    pprint profile pstats pty pwd py_compile pyclbr pydoc pyexpat queue quopri random re readline \
    reprlib resource rlcompleter runpy sched secrets select selectors shelve shlex shutil signal site \
    smtpd smtplib sndhdr socket socketserver spwd sqlite3 sre_compile sre_constants sre_parse ssl stat \
    statistics string stringprep struct subprocess sunau symtable sys sysconfig syslog tabnanny tarfile \
    telnetlib tempfile termios textwrap this threading time timeit tkinter token tokenize tomllib trace \
    traceback tracemalloc tty turtle turtledemo types typing unicodedata unittest urllib uu uuid venv \
    warnings wave weakref webbrowser winreg winsound wsgiref xdrlib xml xmlrpc zipapp zipfile zipimport \
    zlib zoneinfo \
    troupe_rl";

/// Writes a template environment in Python: NAME.py, and the module troupe_rl/ that it imports, in the same folder.
#[derive(clap::Args)]
#[command(help_template = crate::arguments::TEMPLATE, before_help = "\
Examples:
  envs new my-game
  python3 my_game.py check
  envs new my-game --dir environments")]
pub struct New {
    /// The environment's name: lower-case letters, digits and dashes.
    #[arg(value_name = "NAME")]
    name: String,
    /// The folder to write to.
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

impl New {
    /// # Errors
    /// 2: no such name or folder, or the file is there; 74: it cannot be written.
    pub fn run(&self, quiet: bool) -> Result<()> {
        let name = &self.name;
        let known = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !name.starts_with(|c: char| c.is_ascii_lowercase()) || !name.chars().all(known) {
            return Err(Failure::usage(format!("{name:?} is no name of an environment"))
                .hint("lower-case letters, digits and dashes, as in my-game"));
        }
        if envs::ENVIRONMENTS.iter().any(|environment| environment.name() == name) {
            return Err(Failure::usage(format!("{name} is an environment that ships with Troupe")));
        }
        if !self.dir.is_dir() {
            return Err(Failure::usage(format!("{}: no such directory", self.dir.display())));
        }
        let module = name.replace('-', "_");
        if PYTHON.split_whitespace().any(|taken| taken == module) {
            return Err(Failure::usage(format!(
                "{module}.py would stand in for the module {module} that programs in Python import"
            ))
            .hint(format!("choose another name, such as {name}-game")));
        }
        let path = self.dir.join(format!("{module}.py"));
        let text = SKELETON.replace("FILE", &path.display().to_string()).replace("NAME", name);
        let text = text.replace("./pipeline.sh", record::stage::pipeline());
        self.write(&path, &text, true)?;
        // Another environment may have brought it.
        let module = self.dir.join("troupe_rl");
        std::fs::create_dir_all(&module)
            .map_err(|error| Failure::io(format!("{}: {error}", module.display())))?;
        for (name, text) in MODULE {
            self.write(&module.join(name), text, false)?;
        }
        if !quiet {
            note(
                "envs",
                format_args!("wrote {0}; its head says how to check it and train with it", path.display()),
            );
        }
        Ok(())
    }

    /// Writes a file that is not there yet; one that is there is a mistake, or stays.
    fn write(&self, path: &PathBuf, text: &str, must_be_new: bool) -> Result<()> {
        let io = |error| Failure::io(format!("{}: {error}", path.display()));
        match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(mut file) => file.write_all(text.as_bytes()).map_err(io),
            Err(error) if error.kind() == ErrorKind::AlreadyExists && !must_be_new => Ok(()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(Failure::usage(format!("{} is there already", path.display()))
                    .hint("choose another name, or remove it"))
            }
            Err(error) => Err(io(error)),
        }
    }
}
