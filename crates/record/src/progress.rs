//! Progress on stderr: a bar on a terminal, else a plain line every half minute. Never on stdout, never two at once.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::message::printable;

/// How often a plain line is written where stderr is no terminal.
const PLAIN_INTERVAL: Duration = Duration::from_secs(30);

/// The progress of one piece of work.
pub struct Progress {
    name: String,
    total: Option<u64>,
    done: u64,
    message: String,
    style: Style,
}

enum Style {
    Quiet,
    Bar(ProgressBar),
    Plain { started: Instant, written: Instant },
}

impl Progress {
    /// Progress of the stage `name`, over `total` things where that is known; silent when `quiet`.
    pub fn new(name: &str, quiet: bool, total: Option<u64>) -> Self {
        let style = if quiet {
            Style::Quiet
        } else if std::io::stderr().is_terminal() {
            Style::Bar(bar(name, total))
        } else {
            let now = Instant::now();
            Style::Plain { started: now, written: now }
        };
        Progress { name: name.to_owned(), total, done: 0, message: String::new(), style }
    }

    /// Counts `count` more things as done.
    pub fn inc(&mut self, count: u64) {
        self.done += count;
        match &mut self.style {
            Style::Quiet => {}
            Style::Bar(bar) => bar.inc(count),
            Style::Plain { .. } => self.tick(),
        }
    }

    /// Writes a plain line if one is due. Call it while nothing is done, too, once the work has begun.
    pub fn tick(&mut self) {
        if let Some(line) = self.due(Instant::now()) {
            // Progress is a courtesy: a closed stderr must not stop the work.
            let _ = std::io::stderr().lock().write_all(line.as_bytes());
        }
    }

    /// The plain line that is due at `now`.
    fn due(&mut self, now: Instant) -> Option<String> {
        let Style::Plain { started, written } = &mut self.style else { return None };
        if now.duration_since(*written) < PLAIN_INTERVAL {
            return None;
        }
        *written = now;
        let seconds = now.duration_since(*started).as_secs();
        let of = self.total.map_or(String::new(), |total| format!(" of {total}"));
        let gap = if self.message.is_empty() { "" } else { ": " };
        Some(format!("{}: {}{of} after {seconds} s{gap}{}\n", self.name, self.done, self.message))
    }

    /// Says how much there is in all, where that becomes known later. A plain line counts from here if nothing is done yet.
    pub fn set_total(&mut self, total: u64) {
        self.total = Some(total);
        match &mut self.style {
            Style::Bar(bar) => {
                bar.set_length(total);
                bar.set_style(style(self.total));
            }
            Style::Plain { started, written } if self.done == 0 => {
                let now = Instant::now();
                (*started, *written) = (now, now);
            }
            Style::Plain { .. } | Style::Quiet => {}
        }
    }

    /// Sets the message about the current work or wait.
    pub fn set_message(&mut self, message: impl Into<String>) {
        self.message = printable(&message.into());
        if let Style::Bar(bar) = &self.style {
            bar.set_message(self.message.clone());
        }
    }

    /// Takes the bar off the terminal.
    pub fn finish(&mut self) {
        if let Style::Bar(bar) = &self.style {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}

fn bar(name: &str, total: Option<u64>) -> ProgressBar {
    let bar = total.map_or_else(ProgressBar::new_spinner, ProgressBar::new);
    bar.set_draw_target(ProgressDrawTarget::stderr());
    bar.set_style(style(total));
    bar.set_prefix(name.to_owned());
    // It panics where the system starts no more threads; without it the bar moves with the work.
    if std::thread::Builder::new().spawn(|| ()).is_ok() {
        bar.enable_steady_tick(Duration::from_millis(200));
    }
    bar
}

fn style(total: Option<u64>) -> ProgressStyle {
    let template = match total {
        Some(_) => "{prefix} [{bar:30}] {pos}/{len} {elapsed} (eta {eta}) {msg}",
        None => "{prefix} {spinner} {pos} {elapsed} {msg}",
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    style.progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_lines_come_every_half_minute_also_while_nothing_is_done() {
        let begun = Instant::now();
        let style = Style::Plain { started: begun, written: begun };
        let (name, message) = ("evaluating".to_owned(), String::new());
        let mut progress = Progress { name, total: Some(300), done: 0, message, style };
        let mut after = |seconds| progress.due(begun + Duration::from_secs(seconds));
        assert_eq!(after(29), None);
        assert_eq!(after(31).as_deref(), Some("evaluating: 0 of 300 after 31 s\n"));
        assert_eq!(after(60), None);
        progress.done = 40;
        progress.set_message("tasks played");
        let line = progress.due(begun + Duration::from_secs(61));
        assert_eq!(line.as_deref(), Some("evaluating: 40 of 300 after 61 s: tasks played\n"));
    }
}
