//! Progress of long work: a bar on a terminal, nothing in a pipe.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// Progress in files and bytes.
pub struct Progress {
    bar: ProgressBar,
    files: u64,
}

impl Progress {
    /// Whether anybody would see it; counting the work beforehand is only worth it then.
    pub fn visible() -> bool {
        use std::io::IsTerminal;
        std::io::stderr().is_terminal()
    }

    /// Begins; `total` is the work in bytes, if it is known. The bar appears on standard error if that is a terminal.
    pub fn new(total: Option<u64>) -> Progress {
        let bar = ProgressBar::with_draw_target(
            total,
            if Self::visible() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() },
        );
        let template = match total {
            Some(_) => "{bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {msg} {eta} left",
            None => "{spinner} {binary_bytes} {binary_bytes_per_sec} {msg}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress { bar, files: 0 }
    }

    /// Some bytes are done.
    pub fn bytes(&self, n: u64) {
        self.bar.inc(n);
    }

    /// One more file is done.
    pub fn file(&mut self) {
        self.files += 1;
        if !self.bar.is_hidden() && self.files.is_multiple_of(64) {
            self.bar.set_message(format!("{} files", self.files));
        }
    }

    /// Files done so far.
    pub fn files(&self) -> u64 {
        self.files
    }

    /// Prints a line on standard error without tearing the bar.
    pub fn complain(&self, line: &str) {
        self.bar.suspend(|| eprintln!("cffs: {line}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Progress of work in phases.
pub struct Steps {
    bar: ProgressBar,
}

impl Steps {
    /// Begins.
    pub fn new() -> Steps {
        let target = if Progress::visible() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        if let Ok(style) = ProgressStyle::with_template("{msg:24} {bar:30} {pos}/{len} {eta} left") {
            bar.set_style(style);
        }
        Steps { bar }
    }

    /// Does something that writes to the terminal, without tearing the bar.
    pub fn pause<T>(&self, f: impl FnOnce() -> T) -> T {
        self.bar.suspend(f)
    }

    /// So much of a phase is done.
    pub fn show(&self, phase: &'static str, done: u64, total: u64) {
        if self.bar.is_hidden() {
            return;
        }
        if self.bar.message() != phase {
            self.bar.reset();
            self.bar.set_message(phase);
        }
        self.bar.set_length(total);
        self.bar.set_position(done);
    }
}

impl Drop for Steps {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
