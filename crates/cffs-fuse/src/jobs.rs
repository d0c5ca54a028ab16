//! Work for a request that takes longer than a request may: it gets a number, and the process that asks looks how it ended.
//!
//! Snapshots go through a pipe of that process. The request names a descriptor of that process. The server opens the same pipe by `/proc`, and a thread of its own works on it: so the bytes do not go
//! through the kernel's FUSE messages, and a process that is killed ends the transfer, as with any pipe. (A request that was answered only at the end would keep
//! the killed process, and with it its end of the pipe, until the answer.)

use crate::snapshots::{self, Received, Sent};
use cffs::{Error, Fs, Result};
use cffs_logdisk::LogDisk;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Outcomes that nobody has asked for, at most.
const OUTCOMES_MAX: usize = 16;
/// How often work that waits for the other end looks whether the mount ends.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// How such work ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum JobOutcome {
    /// A snapshot was sent.
    Sent(Sent),
    /// A snapshot was received.
    Received(Received),
    /// A snapshot was mounted.
    Mounted,
    /// It failed; the text says why.
    Failed(String),
}

/// What work came to, and the pipe that it has used.
pub(crate) type Ended = (std::result::Result<JobOutcome, String>, Option<Pipe>);

/// Its outcome, when it has one, and its thread until that was joined.
type Running = (Arc<Mutex<Option<JobOutcome>>>, Option<JoinHandle<()>>);

#[derive(Default)]
struct All {
    last: u64,
    running: BTreeMap<u64, Running>,
}

/// The jobs of a mount, and how the last ones ended.
#[derive(Default)]
pub(crate) struct Jobs {
    all: Mutex<All>,
    stop: Arc<AtomicBool>,
}

impl Jobs {
    /// Begins to send a snapshot, or what differs from an earlier one, through a pipe of a process. `token` is where to go on. Returns the number of the work.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the descriptor is no pipe of that process; those of starting a thread.
    pub(crate) fn send(
        &self,
        disk: Arc<LogDisk>,
        (name, from, token): (String, Option<String>, Option<String>),
        process: u32,
        fd: u32,
    ) -> Result<u64> {
        let mut pipe = self.pipe(process, fd, true)?;
        self.begin(move || {
            let sent = snapshots::send(&disk, &name, from.as_deref(), token.as_deref(), &mut pipe);
            (sent.map(JobOutcome::Sent).map_err(|e| e.to_string()), Some(pipe))
        })
    }

    /// Begins to receive a snapshot through a pipe of a process, under a name or that which it has. Returns the number of the work.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the descriptor is no pipe of that process; those of starting a thread.
    pub(crate) fn receive(
        &self,
        (disk, fs): (Arc<LogDisk>, Option<Arc<Fs>>),
        name: Option<String>,
        process: u32,
        fd: u32,
    ) -> Result<u64> {
        let mut pipe = self.pipe(process, fd, false)?;
        self.begin(move || {
            let received = snapshots::receive(&disk, fs.as_deref(), name.as_deref(), &mut pipe);
            drop(fs);
            (received.map(JobOutcome::Received).map_err(|e| e.to_string()), Some(pipe))
        })
    }

    fn pipe(&self, process: u32, fd: u32, writes: bool) -> Result<Pipe> {
        Ok(Pipe { fd: open_pipe(process, fd, writes)?, stop: self.stop.clone() })
    }

    /// Begins any such work, in a thread. Returns its number.
    ///
    /// # Errors
    /// [`Error::Busy`] if the mount ends; those of starting a thread.
    pub(crate) fn begin(&self, work: impl FnOnce() -> Ended + Send + 'static) -> Result<u64> {
        let mut all = self.all.lock();
        if self.stop.load(Ordering::Acquire) {
            return Err(Error::Busy("the file system is being unmounted".into()));
        }
        let outcome = Arc::new(Mutex::new(None));
        let ends = outcome.clone();
        let thread = std::thread::Builder::new().name("cffs-job".into()).spawn(move || {
            let (done, pipe) = work();
            *ends.lock() = Some(done.unwrap_or_else(JobOutcome::Failed));
            // The other end learns last, so that it finds the outcome.
            drop(pipe);
        })?;
        all.last += 1;
        let number = all.last;
        all.running.insert(number, (outcome, Some(thread)));
        while all.running.len() > OUTCOMES_MAX {
            let over = all.running.iter().find(|(_, (outcome, _))| outcome.lock().is_some()).map(|(n, _)| *n);
            let Some(over) = over else { break };
            all.running.remove(&over);
        }
        Ok(number)
    }

    /// How work ended; `None` while it runs.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is none with this number.
    pub(crate) fn outcome(&self, number: u64) -> Result<Option<JobOutcome>> {
        let all = self.all.lock();
        let known = all.running.get(&number).map(|(outcome, _)| outcome.lock().clone());
        known.ok_or_else(|| Error::Invalid(format!("there is no work {number}")))
    }

    /// Ends all jobs, and waits for them. No other begins.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        let threads: Vec<JoinHandle<()>> = {
            let mut all = self.all.lock();
            all.running.values_mut().filter_map(|(_, thread)| thread.take()).collect()
        };
        for thread in threads {
            let _ = thread.join();
        }
    }
}

/// Opens the pipe that a process has as a descriptor, at one end.
fn open_pipe(process: u32, fd: u32, writes: bool) -> Result<OwnedFd> {
    let refused = |why: String| Error::Invalid(format!("descriptor {fd} of process {process}: {why}"));
    let flags = if writes { OFlags::WRONLY } else { OFlags::RDONLY };
    let path = format!("/proc/{process}/fd/{fd}");
    // Looked at first: opening may change what is no pipe.
    let kind = |stat: &rustix::fs::Stat| rustix::fs::FileType::from_raw_mode(stat.st_mode);
    let is_pipe = |stat: rustix::fs::Stat| kind(&stat) == rustix::fs::FileType::Fifo;
    if !is_pipe(rustix::fs::stat(&path).map_err(|e| refused(io::Error::from(e).to_string()))?) {
        return Err(refused("it is no pipe".into()));
    }
    let opened = open(&path, flags | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty());
    let opened = opened.map_err(|e| refused(io::Error::from(e).to_string()))?;
    if !is_pipe(rustix::fs::fstat(&opened).map_err(io::Error::from)?) {
        return Err(refused("it is no pipe any more".into()));
    }
    Ok(opened)
}

/// An end of a pipe. What waits for the other end gives up when the mount ends.
pub(crate) struct Pipe {
    fd: OwnedFd,
    stop: Arc<AtomicBool>,
}

impl Pipe {
    /// Does something that does not wait, when it can be done.
    fn when<T>(&self, ready: PollFlags, mut attempt: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
        loop {
            if self.stop.load(Ordering::Acquire) {
                return Err(io::Error::other("the file system was unmounted"));
            }
            match attempt() {
                Err(Errno::AGAIN) => {}
                Err(Errno::INTR) => continue,
                other => return Ok(other?),
            }
            match poll(&mut [PollFd::new(&self.fd, ready)], Some(&LOOK)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

impl Read for Pipe {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.when(PollFlags::IN, || rustix::io::read(&self.fd, &mut *buf))
    }
}

impl Write for Pipe {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.when(PollFlags::OUT, || rustix::io::write(&self.fd, buf))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cffs::device::Device as _;
    use std::os::fd::AsRawFd as _;
    use std::time::Duration;

    fn disk() -> Arc<LogDisk> {
        let store = Arc::new(cffs_logdisk::MemoryStore::new(64 << 20, 256 << 10, true));
        let disk = Arc::new(LogDisk::format(store, 256 << 20, &cffs_logdisk::LogOptions::default()).unwrap());
        cffs::mkfs(&*disk, None, &cffs::MkfsOptions::default().log_bytes(Some(cffs::mkfs::log_bytes_min(4096))))
            .unwrap();
        disk
    }

    fn monday() -> (String, Option<String>, Option<String>) {
        ("monday".into(), None, None)
    }

    fn wait(jobs: &Jobs, number: u64) -> JobOutcome {
        for _ in 0..1000 {
            if let Some(outcome) = jobs.outcome(number).unwrap() {
                return outcome;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("it does not end");
    }

    #[test]
    fn a_snapshot_goes_through_a_pipe_to_another_disk() {
        let (source, target) = (disk(), disk());
        snapshots::create(&source, None, "monday").unwrap();
        let jobs = Jobs::default();
        let (reader, writer) = io::pipe().unwrap();
        let me = std::process::id();
        let sends = jobs.send(source, monday(), me, writer.as_raw_fd() as u32).unwrap();
        let receives = jobs.receive((target.clone(), None), None, me, reader.as_raw_fd() as u32).unwrap();
        drop((reader, writer));
        let JobOutcome::Sent(sent) = wait(&jobs, sends) else { panic!("not sent") };
        let JobOutcome::Received(received) = wait(&jobs, receives) else { panic!("not received") };
        assert_eq!((received.name.as_str(), received.data), ("monday", sent.data));
        assert!(snapshots::list(&target)[0].received);
        assert!(jobs.outcome(7).is_err());
    }

    #[test]
    fn what_waits_for_the_other_end_is_ended_with_the_mount() {
        let source = disk();
        // More than a pipe takes.
        source.write_at(cffs::device::IoKind::Data, 200 << 20, &[7; 1 << 20]).unwrap();
        snapshots::create(&source, None, "monday").unwrap();
        let jobs = Jobs::default();
        let (_reader, writer) = io::pipe().unwrap();
        let fd = writer.as_raw_fd() as u32;
        let number = jobs.send(source.clone(), monday(), std::process::id(), fd).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(jobs.outcome(number).unwrap(), None, "nobody reads");
        jobs.stop();
        let JobOutcome::Failed(why) = wait(&jobs, number) else { panic!("not ended") };
        assert!(why.contains("unmounted"), "{why}");
        assert!(jobs.send(source, monday(), std::process::id(), fd).is_err());
    }

    #[test]
    fn what_is_no_pipe_is_refused() {
        let file = tempfile::tempfile().unwrap();
        let jobs = Jobs::default();
        let refused = jobs.send(disk(), monday(), std::process::id(), file.as_raw_fd() as u32).unwrap_err();
        assert!(refused.to_string().contains("no pipe"), "{refused}");
    }
}
