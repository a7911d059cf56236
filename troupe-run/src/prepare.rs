//! A run that has been checked but not begun, so nothing is written.

use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};
use serde_json::{Map, Value};

use crate::checks::Launcher;
use crate::disk;
use crate::environment::{self, Acting};
use crate::held;
use crate::method;
use crate::programs::Programs;
use crate::settings::Settings;
use crate::stages::Plan;
use crate::team::Team;

/// All that a run is made with.
#[derive(Debug)]
pub struct PreparedRun {
    programs: Programs,
    settings: Settings,
    acting: Acting,
    team: Team,
    path: PathBuf,
    launcher: Launcher,
}

impl PreparedRun {
    /// Asks the environment who acts, and has every stage check its command line.
    ///
    /// # Errors
    /// The first value that is none of its flag's (exit 2), or that of the stage which refuses.
    pub fn new(programs: Programs, mut settings: Settings, launcher: Launcher) -> Result<PreparedRun> {
        let acting = environment::ask(&programs, &mut settings)?;
        method::settle(&mut settings)?;
        settings.set_for_others("max_tokens", &acting.max_tokens.to_string());
        let run = match settings.text("run") {
            "" => format!("runs/{}", acting.env),
            run => run.to_owned(),
        };
        if run.contains(char::is_control) {
            return Err(Failure::usage(format!("--run {run:?} has a control character"))
                .hint("a run is named in messages and in files of one line: choose a printable name"));
        }
        let path = absolute(Path::new(&run))?;
        let team = Team::new(&settings, &acting)?;
        let prepared = PreparedRun { programs, settings, acting, team, path, launcher };
        prepared.plan().check()?;
        Ok(prepared)
    }

    /// What the stages' command lines follow from.
    pub fn plan(&self) -> Plan<'_> {
        Plan {
            programs: &self.programs,
            settings: &self.settings,
            acting: &self.acting,
            team: &self.team,
            run: &self.path,
            launcher: self.launcher,
        }
    }

    /// The values that bind the run.
    ///
    /// # Errors
    /// A policy that was handed in cannot be read (exit 74); `rollout` is another program (exit 1).
    pub fn values(&self) -> Result<Map<String, Value>> {
        let build = self.programs.build(self.settings.text("device"))?;
        held::values(&self.settings, &self.acting, &build)
    }

    /// The run directory.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The absolute path; a path that goes up is resolved.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    let goes_up = path.components().any(|part| part == std::path::Component::ParentDir);
    let found = if goes_up {
        path.canonicalize().or_else(|_| std::path::absolute(path))
    } else {
        std::path::absolute(path)
    };
    found.map_err(|error| disk::failed("read", path, &error))
}
