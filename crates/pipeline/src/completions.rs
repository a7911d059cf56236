//! Shell completions: for `pipeline.sh`, from its command line, and for a package's `troupe` command, which runs other programs.

use std::path::Path;
use std::process::Command;

use clap_complete::Shell;
use record::child;
use record::failure::Result;

use crate::command_line;
use crate::disk;
use crate::processes::called;
use crate::quote::quoted;

/// The programs that a package's `troupe` runs.
pub const PROGRAMS: [(&str, &str); 8] = [
    ("pipeline", "the training loop"),
    ("envs", "environments: tasks, their rules, demonstrations"),
    ("rollout", "plays tasks and samples candidates"),
    ("group", "compares candidates that answered the same prompt"),
    ("advantage", "turns the rewards of a group into advantages"),
    ("update", "trains policies and publishes a new version"),
    ("report", "the page of a run, its curves and its episodes"),
    ("policy", "makes, imports and checks policies"),
];

/// If set, a program writes its man page and shell completions into this folder, laid out
/// like `share`, and exits.
const MANUALS: &str = "TROUPE_MANUALS";

/// Prints the completion script for a shell: of `pipeline.sh` or, called as a package's `troupe pipeline`, of `troupe`.
pub fn print(shell: Shell) -> Result<()> {
    let mut text = of_pipeline(shell);
    if called() != "./pipeline.sh" {
        let root = std::env::var("TROUPE_ROOT").unwrap_or_default();
        let share = Path::new(&root).parent().unwrap_or(Path::new(""));
        text.extend(
            of_troupe(shell, &share.join("bash-completion/completions").display().to_string()).bytes(),
        );
    }
    record::write::stdout(&text)
}

/// The completion script of `troupe`, with bash's scripts of the other programs in `folder`.
fn of_troupe(shell: Shell, folder: &str) -> String {
    match shell {
        Shell::Fish => fish(),
        Shell::Zsh => zsh(),
        _ => bash().replace(THIS_FOLDER, &quoted(folder)),
    }
}

/// Writes the man page and completions if [`MANUALS`] is set, and exits.
pub fn end_if_manuals() -> Result<()> {
    let Some(share) = std::env::var_os(MANUALS).filter(|folder| !folder.is_empty()) else { return Ok(()) };
    for (file, text) in [
        ("bash-completion/completions/troupe.bash", bash()),
        ("fish/vendor_completions.d/troupe.fish", fish()),
        ("zsh/site-functions/_troupe", zsh()),
    ] {
        let file = Path::new(&share).join(file);
        disk::make(file.parent().unwrap_or(Path::new("")))?;
        disk::write(&file, &text)?;
    }
    record::stage::end_if_manuals(&command_line::command(&environments()), Some("troupe-pipeline"));
    Ok(())
}

fn of_pipeline(shell: Shell) -> Vec<u8> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command_line::command(&environments()), "pipeline.sh", &mut text);
    text
}

/// Names of the environments, from the `envs` next to this program; empty if it is not there.
fn environments() -> Vec<&'static str> {
    let names = || {
        let envs = std::env::current_exe().ok()?.with_file_name("envs");
        let mut list = Command::new(envs);
        let output = child::output(list.args(["list", "--format", "names"]).env_remove(MANUALS)).ok()?;
        String::from_utf8(output.stdout).ok()
    };
    let names: &'static str = names().unwrap_or_default().leak();
    names.lines().collect()
}

fn bash() -> String {
    let names: Vec<&str> = PROGRAMS.iter().map(|(name, _)| *name).collect();
    BASH.replace("PROGRAMS", &names.join(" "))
}

fn fish() -> String {
    let mut text = FISH.to_owned();
    for (name, about) in PROGRAMS {
        text.push_str(&format!("complete -c troupe -f -n __troupe_is_first -a {name} -d '{about}'\n"));
    }
    text
}

fn zsh() -> String {
    let program = |(name, about): &(&str, &str)| format!("'{name}:{}' ", about.replace(':', "\\:"));
    ZSH.replace("PROGRAMS", &PROGRAMS.iter().map(program).collect::<String>())
}

/// Where bash reads a script from.
const THIS_FOLDER: &str = "${BASH_SOURCE[0]%/*}";

/// Completes the program's name, then delegates to that program's completion file in this folder.
const BASH: &str = r#"_troupe_completions=${BASH_SOURCE[0]%/*}
_troupe() {
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "PROGRAMS --help --version" -- "$2"))
        return
    fi
    local program=${COMP_WORDS[1]}
    local file=$program
    [ "$program" != pipeline ] || file=pipeline.sh
    if ! declare -F "_$file" >/dev/null; then
        [ -r "$_troupe_completions/$file.bash" ] || return
        . "$_troupe_completions/$file.bash"
    fi
    COMP_WORDS=("${COMP_WORDS[@]:1}")
    COMP_CWORD=$((COMP_CWORD - 1))
    "_$file" "$program" "$2" "$3"
}
complete -F _troupe -o bashdefault -o default troupe
"#;

const FISH: &str = r#"function __troupe_is_first
    test (count (commandline -opc)) -eq 1
end
function __troupe_rest
    set -l words (commandline -opc) (commandline -ct)
    set -e words[1]
    test "$words[1]" = pipeline; and set words[1] pipeline.sh
    complete -C "$words"
end
complete -c troupe -f -n 'not __troupe_is_first' -a '(__troupe_rest)'
"#;

const ZSH: &str = r#"#compdef troupe
_troupe() {
    local curcontext="$curcontext" state line program
    local -a programs
    programs=(PROGRAMS)
    _arguments -C '1:program:->program' '*::argument:->arguments'
    case $state in
        program) _describe program programs ;;
        arguments)
            program=$words[1]
            [[ $program = pipeline ]] && program=pipeline.sh
            (( $+functions[_$program] )) && _$program ;;
    esac
}
if [ "$funcstack[1]" = "_troupe" ]; then
    _troupe "$@"
else
    compdef _troupe troupe
fi
"#;

#[cfg(test)]
mod tests {
    use super::*;

    fn flags() -> Vec<String> {
        let command = command_line::command(&[]);
        command.get_arguments().filter_map(|flag| flag.get_long().map(str::to_owned)).collect()
    }

    /// What bash completes for the last of `words`.
    fn offered(folder: &Path, words: &[&str]) -> Vec<String> {
        let (last, program) = (words.len() - 1, words[0]);
        let script = format!(
            "source '{}/{program}.bash'; COMP_WORDS=({}); COMP_CWORD={last}; _{program} {program} '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            folder.display(),
            words.iter().map(|word| format!("'{word}' ")).collect::<String>(),
            words[last],
            words[last - 1]
        );
        let output = Command::new("bash").args(["-c", &script]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn bash_offers_every_flag_and_the_words_that_one_takes() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        std::fs::write(folder.join("pipeline.sh.bash"), of_pipeline(Shell::Bash)).unwrap();
        std::fs::write(folder.join("troupe.bash"), bash()).unwrap();
        let all = offered(folder, &["pipeline.sh", "--"]);
        for flag in flags() {
            assert!(all.contains(&format!("--{flag}")), "{flag}");
        }
        assert_eq!(offered(folder, &["pipeline.sh", "--lr-w"]), ["--lr-warmup"]);
        assert_eq!(offered(folder, &["pipeline.sh", "--select", ""]), ["best", "random"]);
        assert_eq!(offered(folder, &["pipeline.sh", "evaluate", "--lr-w"]), ["--lr-warmup"]);
        assert_eq!(offered(folder, &["pipeline.sh", "--resident", "--optimizer", "a"]), ["adamw"]);
        assert_eq!(offered(folder, &["troupe", "up"]), ["update"]);
        assert_eq!(offered(folder, &["troupe", "pipeline", "--tok"]), ["--token-budget"]);
        assert_eq!(offered(folder, &["troupe", "pipeline", "--method", "magrpo-"]), ["magrpo-cross"]);
        assert!(offered(folder, &["troupe", "nothing", "--"]).is_empty());
    }

    /// `source <(troupe pipeline completions bash)` reads one script, which is in no folder.
    #[test]
    fn one_script_completes_a_packages_command() {
        let (read, installed) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let text = String::from_utf8(of_pipeline(Shell::Bash)).unwrap();
        let folder = installed.path().display().to_string();
        let text = text + &of_troupe(Shell::Bash, &folder);
        std::fs::write(read.path().join("troupe.bash"), text).unwrap();
        std::fs::write(installed.path().join("update.bash"), "_update() { COMPREPLY=(\"$1\"); }").unwrap();
        assert_eq!(offered(read.path(), &["troupe", "pipeline", "--tok"]), ["--token-budget"]);
        assert_eq!(offered(read.path(), &["troupe", "update", "--"]), ["update"]);
        for shell in [Shell::Fish, Shell::Zsh] {
            assert!(of_troupe(shell, "").contains("troupe"), "{shell}");
        }
    }

    #[test]
    fn other_shells_have_every_flag_too() {
        for shell in [Shell::Fish, Shell::Zsh] {
            let text = String::from_utf8(of_pipeline(shell)).unwrap();
            for flag in flags() {
                let dashes = if shell == Shell::Fish { "-l " } else { "--" };
                assert!(text.contains(&format!("{dashes}{flag}")), "{shell}: {flag}");
            }
        }
        for text in [fish(), zsh()] {
            assert!(PROGRAMS.iter().all(|(name, _)| text.contains(name)));
        }
    }
}
