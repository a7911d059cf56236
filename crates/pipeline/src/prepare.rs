//! A run that is checked but not started; nothing is written yet.

use std::path::{Path, PathBuf};

use record::failure::{Failure, Result};
use serde_json::{Map, Value};

use crate::checks::Launcher;
use crate::claim;
use crate::disk;
use crate::environment::{self, Acting};
use crate::frozen_settings;
use crate::inputs;
use crate::method;
use crate::model;
use crate::programs::Programs;
use crate::settings::Settings;
use crate::stages::Plan;
use crate::team::Team;

/// The complete inputs of a run.
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
    /// Asks the environment for its agents, and has every stage check its command line.
    ///
    /// # Errors
    /// A flag's value is invalid (exit 2), or a stage refuses its command line (that stage's exit code).
    pub fn new(programs: Programs, mut settings: Settings, launcher: Launcher) -> Result<PreparedRun> {
        let acting = environment::ask(&programs, &mut settings)?;
        method::settle(&mut settings)?;
        settings.keep_opponents()?;
        let run = settings.run.clone().unwrap_or_else(|| format!("runs/{}", acting.env));
        if run.contains(char::is_control) {
            return Err(Failure::usage(format!("--run {run:?} has a control character"))
                .hint("a run is named in messages and in files of one line: choose a printable name"));
        }
        let path = absolute(Path::new(&run))?;
        claim::check(&path)?;
        claim::is_outside(&settings, &path)?;
        let team = Team::new(&settings, &acting)?;
        let mut prepared = PreparedRun { programs, settings, acting, team, path, launcher };
        prepared.plan().check()?;
        // What may take long comes after what is refused at once.
        model::settle(&prepared.programs, &mut prepared.settings, &prepared.path)?;
        Ok(prepared)
    }

    /// The inputs of the stages' command lines.
    pub fn plan(&self) -> Plan<'_> {
        Plan {
            programs: &self.programs,
            settings: &self.settings,
            acting: &self.acting,
            team: &self.team,
            run: &self.path,
            launcher: self.launcher,
            halvings: 0,
        }
    }

    /// The values that the run must keep; `is_resumed` with the policies that it has.
    ///
    /// # Errors
    /// An input cannot be read (exit 74); `rollout` is not this project's (exit 1).
    pub fn values(&self, is_resumed: bool) -> Result<Map<String, Value>> {
        let build = self.programs.build(&self.settings.device)?;
        let inputs = inputs::digests(&self.settings, &self.path, is_resumed)?;
        frozen_settings::values(&self.settings, &self.acting, &build, &inputs)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The absolute path, with `..` resolved.
pub fn absolute(path: &Path) -> Result<PathBuf> {
    let goes_up = path.components().any(|part| part == std::path::Component::ParentDir);
    let found = if goes_up {
        path.canonicalize().or_else(|_| std::path::absolute(path))
    } else {
        std::path::absolute(path)
    };
    found.map_err(|error| disk::failed("read", path, &error))
}
