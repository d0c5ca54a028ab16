//! Where messages go: standard error, and for a mount in the background the system log or a file.
//!
//! The system log is spoken to over its socket, `/dev/log`; where systemd runs, that is the journal. Each message has the
//! severity of its level. On standard error of a service the journal is told the same by a number in front of the line.

use jiff::Zoned;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tracing::{Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Variable with a filter as tracing-subscriber has it, such as `debug` or `cffs::journal=trace`.
const FILTER_VARIABLE: &str = "CFFS_LOG";
/// Set by systemd for services whose standard error is the journal.
const JOURNAL_VARIABLE: &str = "JOURNAL_STREAM";
/// Socket of the system log.
const SYSLOG: &str = "/dev/log";
/// Facility "daemon" of syslog(3).
const FACILITY: u8 = 3;

enum Sink {
    Stderr { journal: bool },
    File(File),
    Syslog(UnixDatagram),
    Nowhere,
}

static SINK: Mutex<Sink> = Mutex::new(Sink::Stderr { journal: false });

fn sink() -> MutexGuard<'static, Sink> {
    SINK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the writer of a message from its level.
struct Messages;

/// One message: the subscriber hands it over in a single call.
struct Message {
    severity: u8,
}

/// Severity of syslog(3).
fn severity(level: &Level) -> u8 {
    match *level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

impl<'a> MakeWriter<'a> for Messages {
    type Writer = Message;

    fn make_writer(&'a self) -> Message {
        Message { severity: severity(&Level::INFO) }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Message {
        Message { severity: severity(meta.level()) }
    }
}

impl Write for Message {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(text);
        let line = line.trim();
        match &mut *sink() {
            Sink::Stderr { journal: true } => writeln!(io::stderr(), "<{}>{line}", self.severity)?,
            Sink::Stderr { .. } => writeln!(io::stderr(), "{} {line}", now())?,
            Sink::File(file) => file.write_all(format!("{} {line}\n", now()).as_bytes())?,
            Sink::Syslog(socket) => {
                let priority = FACILITY << 3 | self.severity;
                // Nobody hears of it if the system log takes no more.
                let _ = socket.send(format!("<{priority}>cffs[{}]: {line}", std::process::id()).as_bytes());
            }
            Sink::Nowhere => {}
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Date and time as RFC 3339 has it.
fn now() -> String {
    Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
}

/// Starts with standard error. `verbose` counts the times that `-v` was given.
pub fn start(verbose: u8) {
    start_at(None, verbose);
}

/// The same with a level by name, which counts unless the variable says otherwise.
pub fn start_at(level: Option<&str>, verbose: u8) {
    let level = level.unwrap_or(match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    });
    *sink() = Sink::Stderr { journal: stderr_is_journal() };
    let filter = EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new(level));
    // An error means that there is one already, which is as good.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(false)
        .without_time()
        .with_writer(Messages)
        .try_init();
}

/// Whether standard error is the stream to the journal that the variable tells of; it is inherited by programs whose
/// standard error is something else.
fn stderr_is_journal() -> bool {
    let told = std::env::var(JOURNAL_VARIABLE).unwrap_or_default();
    let told = told.split_once(':').and_then(|(dev, ino)| Some((dev.parse::<u64>().ok()?, ino.parse::<u64>().ok()?)));
    let is = rustix::fs::fstat(io::stderr()).ok().map(|s| (s.st_dev, s.st_ino));
    told.is_some() && told == is
}

/// Sends all messages from now on to a file, after what it has.
pub fn to_file(path: &Path) -> io::Result<()> {
    let file = File::options().create(true).append(true).open(path)?;
    *sink() = Sink::File(file);
    Ok(())
}

/// If messages go to standard error, sends them to the system log from now on, or nowhere if there is none. A panic
/// becomes a message too.
pub fn leave_stderr() {
    std::panic::set_hook(Box::new(|info| tracing::error!("{info}")));
    let mut sink = sink();
    if matches!(*sink, Sink::Stderr { .. }) {
        let socket = UnixDatagram::unbound().and_then(|s| s.connect(SYSLOG).map(|()| s));
        // The file system must not wait for a log daemon that does not read.
        let socket = socket.and_then(|s| s.set_nonblocking(true).map(|()| s));
        *sink = socket.map_or(Sink::Nowhere, Sink::Syslog);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_the_severities_of_syslog() {
        assert_eq!(
            [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE].map(|l| severity(&l)),
            [3, 4, 6, 7, 7]
        );
        assert_eq!(FACILITY << 3 | severity(&Level::WARN), 28);
    }
}
