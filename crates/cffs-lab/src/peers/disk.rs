//! A disk on which every request takes a fixed time, and which counts them.
//!
//! An `nbdkit` memory disk with a delay on reads and writes; `nbdfuse` makes
//! it a file. The log filter stands outermost, so what is counted is each
//! request as the disk receives it, after all splitting and merging on the way.

use std::fs::File;
use std::io::Read;
use std::ops::Sub;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::cleanup::{Cleanup, Guard};
use crate::mount_table::is_mounted;
use crate::process::run;
use crate::server::Server;

/// Requests and bytes a disk has received.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counters {
    /// Read requests.
    pub reads: u64,
    /// Bytes they asked for.
    pub read_bytes: u64,
    /// Write requests, those that write zeroes included.
    pub writes: u64,
    /// Bytes they carried.
    pub write_bytes: u64,
    /// Cache flushes.
    pub flushes: u64,
    /// Discards.
    pub trims: u64,
}

impl Sub for Counters {
    type Output = Counters;

    fn sub(self, before: Counters) -> Counters {
        Counters {
            reads: self.reads - before.reads,
            read_bytes: self.read_bytes - before.read_bytes,
            writes: self.writes - before.writes,
            write_bytes: self.write_bytes - before.write_bytes,
            flushes: self.flushes - before.flushes,
            trims: self.trims - before.trims,
        }
    }
}

/// A running disk; ended when dropped.
#[derive(Debug)]
pub struct Disk {
    // Fields are dropped in this order: the file first, then its servers.
    mount: Option<Guard>,
    mount_dir: PathBuf,
    nbdfuse: Option<Server>,
    nbdkit: Option<Server>,
    log: RequestLog,
}

impl Disk {
    /// Starts a disk of `size` bytes (nbdkit's notation) in the directory `dir`.
    ///
    /// # Errors
    /// When a server does not start.
    pub fn start(dir: &Path, size: &str, delay: &str) -> Result<Self> {
        let socket = dir.join("nbd.sock");
        let log = dir.join("requests.log");
        let mount_dir = dir.join("disk");
        std::fs::create_dir(&mount_dir)?;

        let mut command = Command::new("nbdkit");
        command
            .args(["-f", "--exit-with-parent", "-U"])
            .arg(&socket)
            .args(["--filter=log", "--filter=delay", "memory", size])
            .arg(format!("logfile={}", log.display()))
            .arg(format!("rdelay={delay}"))
            .arg(format!("wdelay={delay}"));
        let mut nbdkit = Server::start(command)?;
        nbdkit.wait_until(Duration::from_secs(20), || socket.exists())?;

        let file = mount_dir.join("disk");
        let mut command = Command::new("nbdfuse");
        command.args(["-C", "4"]).arg(&file).arg(format!("nbd+unix:///?socket={}", socket.display()));
        let mut nbdfuse = Server::start(command)?;
        let mount = Guard::new(Cleanup::Unmount(mount_dir.clone()));
        nbdfuse.wait_until(Duration::from_secs(20), || is_mounted(&mount_dir) && file.exists())?;
        Ok(Disk {
            mount: Some(mount),
            mount_dir,
            nbdfuse: Some(nbdfuse),
            nbdkit: Some(nbdkit),
            log: RequestLog::open(&log)?,
        })
    }

    /// The file that is the disk.
    pub fn file(&self) -> PathBuf {
        self.mount_dir.join("disk")
    }

    /// All requests received until now.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn counters(&mut self) -> Result<Counters> {
        self.log.catch_up()
    }

    /// Ends the disk, saying so if that goes wrong.
    ///
    /// # Errors
    /// When the file is still in use or a server does not end.
    pub fn stop(mut self) -> Result<()> {
        run(&["umount", &self.mount_dir.to_string_lossy()], Duration::from_secs(30))?;
        if let Some(guard) = self.mount.take() {
            guard.disarm();
        }
        if let Some(server) = self.nbdfuse.take() {
            server.wait_end(Duration::from_secs(20))?;
        }
        drop(self.nbdkit.take());
        Ok(())
    }
}

/// Follows the log filter's file.
#[derive(Debug)]
struct RequestLog {
    file: File,
    partial: Vec<u8>,
    total: Counters,
}

impl RequestLog {
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        Ok(RequestLog { file, partial: Vec::new(), total: Counters::default() })
    }

    fn catch_up(&mut self) -> Result<Counters> {
        let mut chunk = vec![0u8; 1 << 20];
        loop {
            let n = self.file.read(&mut chunk).context("cannot read nbdkit's log")?;
            if n == 0 {
                return Ok(self.total);
            }
            self.feed(&chunk[..n]);
        }
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.partial.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(len) = self.partial[start..].iter().position(|b| *b == b'\n') {
            count_line(&self.partial[start..start + len], &mut self.total);
            start += len + 1;
        }
        self.partial.drain(..start);
    }
}

/// A request's line is `DATE TIME connection=C Read id=N offset=0x.. count=0x..
/// ...`; the line of its completion has `...Read` in the fourth place.
fn count_line(line: &[u8], total: &mut Counters) {
    let Ok(line) = std::str::from_utf8(line) else {
        return;
    };
    let mut words = line.split(' ').skip(2);
    if !words.next().is_some_and(|w| w.starts_with("connection=")) {
        return;
    }
    let Some(kind) = words.next() else { return };
    let mut bytes = 0;
    for word in words {
        if let Some(hex) = word.strip_prefix("count=0x") {
            bytes = u64::from_str_radix(hex, 16).unwrap_or(0);
        }
        // Forced unit access is a flush of that write.
        if word == "fua=1" {
            total.flushes += 1;
        }
    }
    match kind {
        "Read" => {
            total.reads += 1;
            total.read_bytes += bytes;
        }
        "Write" => {
            total.writes += 1;
            total.write_bytes += bytes;
        }
        // Zeroes are written without being carried.
        "Zero" => total.writes += 1,
        "Flush" => total.flushes += 1,
        "Trim" => total.trims += 1,
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
2026-11-21 19:35:27.177553 Ready thread_model=3
2026-11-21 19:35:27.692107 connection=1 Connect export=\"\" tls=0 size=0x40000000 write=1 flush=1
2026-11-21 19:35:28.261471 connection=1 Read id=12 offset=0x10000 count=0x1000 ...
2026-11-21 19:35:28.262541 connection=1 ...Read id=12 return=0
2026-11-21 19:35:28.262718 connection=2 Write id=12 offset=0x20000 count=0x20000 fua=0 ...
2026-11-21 19:35:28.263840 connection=2 ...Write id=12 return=0
2026-11-21 19:35:28.262718 connection=2 Write id=13 offset=0x20000 count=0x400 fua=1 ...
2026-11-21 19:35:28.263840 connection=2 ...Write id=13 return=0
2026-11-21 19:35:28.263966 connection=3 Flush id=12 ...
2026-11-21 19:35:28.265067 connection=3 ...Flush id=12 return=0
2026-11-21 19:35:28.285147 connection=3 Trim id=21 offset=0x0 count=0x100000 fua=0 ...
2026-11-21 19:35:28.286239 connection=3 ...Trim id=21 return=0
";

    #[test]
    fn requests_are_counted_once_however_the_log_arrives() {
        let expected = Counters { reads: 1, read_bytes: 4096, writes: 2, write_bytes: 0x20400, flushes: 2, trims: 1 };
        for piece in [1, 7, 100, LOG.len()] {
            let file = tempfile::NamedTempFile::new().unwrap();
            let mut log = RequestLog::open(file.path()).unwrap();
            for bytes in LOG.as_bytes().chunks(piece) {
                log.feed(bytes);
            }
            assert_eq!(log.total, expected, "in pieces of {piece}");
        }
    }
}
