//! Whether a trace has the requests that the disk itself counts: `cffs trace` runs beside a workload.

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use cffs::trace::{Item, Kind, Reader};
use rustix::process::{Pid, Signal, kill_process};

use super::disk::Counters;
use crate::mounted::LIMIT;
use crate::server::Server;

/// A recording that goes on.
pub struct Recorder {
    server: Server,
    file: PathBuf,
}

impl Recorder {
    /// Begins to record the requests of a mount, into a file in `dir`.
    ///
    /// # Errors
    /// When the program does not begin.
    pub fn start(cffs: &Path, root: &Path, dir: &Path) -> Result<Recorder> {
        let file = dir.join("trace");
        let mut command = Command::new(cffs);
        command.args(["trace", "--classes", "op,device", "-o"]).arg(&file).arg(root);
        // What an earlier recording has left there does not count.
        let _ = std::fs::remove_file(&file);
        let mut server = Server::start(command)?;
        server.wait_until(LIMIT, || file.metadata().is_ok_and(|m| m.len() > 0))?;
        Ok(Recorder { server, file })
    }

    /// Ends it. Returns the requests in the trace.
    ///
    /// # Errors
    /// When the program fails, or the trace is not whole.
    pub fn finish(self) -> Result<Counters> {
        let pid = i32::try_from(self.server.pid()).ok().and_then(Pid::from_raw).context("no process")?;
        kill_process(pid, Signal::INT)?;
        let status = self.server.wait_end(LIMIT)?;
        ensure!(status.success(), "cffs trace ended with {status}");
        let mut reader = Reader::new(BufReader::new(File::open(&self.file)?))?;
        let mut counted = Counters::default();
        while let Some(item) = reader.next_item()? {
            match item {
                Item::Span(r) => count(&mut counted, r.kind, r.args[1]),
                Item::Lost { spans, .. } => anyhow::bail!("the trace has lost {spans} spans"),
                _ => {}
            }
        }
        ensure!(!reader.is_cut(), "the trace is cut off");
        Ok(counted)
    }
}

fn count(counted: &mut Counters, kind: Kind, bytes: u64) {
    match kind {
        Kind::DeviceRead => (counted.reads, counted.read_bytes) = (counted.reads + 1, counted.read_bytes + bytes),
        Kind::DeviceWrite => (counted.writes, counted.write_bytes) = (counted.writes + 1, counted.write_bytes + bytes),
        Kind::DeviceFlush => counted.flushes += 1,
        Kind::DeviceDiscard => counted.trims += 1,
        _ => {}
    }
}
