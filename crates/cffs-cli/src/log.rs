//! Where messages of the engine go: standard error, and for a mount in the background the system log or a file.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tracing_subscriber::EnvFilter;

/// Variable with a filter as tracing-subscriber has it, such as `debug` or `cffs::journal=trace`.
const FILTER_VARIABLE: &str = "CFFS_LOG";
/// Socket of the system log.
const SYSLOG: &str = "/dev/log";

enum Sink {
    Stderr,
    File(File),
    Syslog(UnixDatagram),
    Nowhere,
}

static SINK: Mutex<Sink> = Mutex::new(Sink::Stderr);

fn sink() -> MutexGuard<'static, Sink> {
    SINK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One message: the subscriber hands it over in a single call.
struct Message;

impl Write for Message {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        match &mut *sink() {
            Sink::Stderr => io::stderr().write_all(text)?,
            Sink::File(file) => file.write_all(text)?,
            Sink::Syslog(socket) => {
                // Facility daemon, severity warning: the level is in the text.
                let mut line = format!("<28>cffs[{}]: ", std::process::id()).into_bytes();
                line.extend_from_slice(text.trim_ascii_end());
                socket.send(&line)?;
            }
            Sink::Nowhere => {}
        }
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts with standard error. `verbose` counts the times that `-v` was given.
pub fn start(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new(level));
    // An error means that there is one already, which is as good.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(|| Message).try_init();
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
    if matches!(*sink, Sink::Stderr) {
        let socket = UnixDatagram::unbound().and_then(|s| s.connect(SYSLOG).map(|()| s));
        // The file system must not wait for a log daemon that does not read.
        let socket = socket.and_then(|s| s.set_nonblocking(true).map(|()| s));
        *sink = socket.map_or(Sink::Nowhere, Sink::Syslog);
    }
}
