//! Messages through io_uring (Linux 6.14, if `fuse.enable_uring` is set).
//!
//! Each processor has a queue, and [`queues`] as many threads as should reply at the same time, each with one slot and
//! bound to that processor. So a message is answered on the processor that sent it, with one system call instead of
//! two, and the kernel copies it without looking up pages (see [`cffs_buf::FuseRing`]). FORGET, and messages sent
//! before the rings are ready, still come through `/dev/fuse` ([`crate::device`]).

use crate::dispatch::{self, Message};
use crate::mountpoint::Unmounter;
use crate::ops::Ops;
use crate::protocol::wire::Header;
use cffs_buf::FuseRing;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

/// Fewest threads for a processor: while one waits for the device, another can reply.
const THREADS_MIN: usize = 2;
/// Room for the numbers and names of a message besides its largest contents.
const PAYLOAD_EXTRA: usize = 4096;

/// The threads of the rings of a mount.
pub(crate) struct Rings {
    threads: Vec<JoinHandle<()>>,
}

impl Rings {
    /// Registers slots for all queues. Until that is done the kernel delays all messages, so after an error here the
    /// mount has to end.
    pub(crate) fn start(ops: &Arc<Ops>, fuse: &OwnedFd, unmounter: &Unmounter) -> io::Result<Rings> {
        let allowed = sched_getaffinity(None)?;
        let payload = ops.config.max_transfer as usize + PAYLOAD_EXTRA;
        let (sender, ready) = channel();
        let mut threads = Vec::new();
        for (i, own) in queues(processors()?, &allowed, ops.config.threads).into_iter().enumerate() {
            let (ops, fuse, sender) = (ops.clone(), fuse.try_clone()?, sender.clone());
            let unmounter = unmounter.clone();
            let thread = std::thread::Builder::new().name(format!("cffs-ring-{i}")).spawn(move || {
                if let Some(cpu) = own.cpu {
                    bind(cpu);
                }
                match FuseRing::new(fuse, &own.queues, payload) {
                    Ok(ring) => {
                        let _ = sender.send(Ok(()));
                        drop(sender);
                        if let Err(error) = serve(&ops, ring) {
                            // Messages may wait for this thread for ever, so the mount is ended in an orderly way.
                            tracing::error!(%error, "io_uring failed; the mount ends");
                            let _ = unmounter.abort();
                        }
                    }
                    Err(e) => drop(sender.send(Err(e))),
                }
            })?;
            threads.push(thread);
        }
        drop(sender);
        ready.into_iter().collect::<io::Result<()>>()?;
        Ok(Rings { threads })
    }

    /// Waits until the last message is answered. The connection has ended.
    pub(crate) fn join(self) {
        for thread in self.threads {
            // A panic was reported where it happened.
            let _ = thread.join();
        }
    }
}

/// One more than the highest possible number of a processor. A connection has as many queues.
fn processors() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit(['-', ',']).next().and_then(|n| n.parse::<usize>().ok());
    Ok(last.ok_or_else(|| io::Error::other(format!("no list of processors: {text:?}")))? + 1)
}

/// The part of one thread.
#[derive(Debug, PartialEq)]
struct Own {
    /// The processor to which it is bound.
    cpu: Option<usize>,
    queues: Vec<u16>,
}

/// Distributes the queues: several threads for each processor that this process may run on, and one thread for all
/// other queues. These get few messages or none, but the kernel wants a slot in every queue.
fn queues(processors: usize, allowed: &CpuSet, threads: usize) -> Vec<Own> {
    let may = |cpu: usize| cpu < CpuSet::MAX_CPU && allowed.is_set(cpu);
    let number = (0..processors).filter(|cpu| may(*cpu)).count().max(1);
    let each = threads.div_ceil(number).max(THREADS_MIN);
    let mut all = Vec::new();
    for cpu in (0..processors).filter(|cpu| may(*cpu)) {
        all.extend((0..each).map(|_| Own { cpu: Some(cpu), queues: vec![cpu as u16] }));
    }
    let others: Vec<u16> = (0..processors).filter(|cpu| !may(*cpu)).map(|cpu| cpu as u16).collect();
    if !others.is_empty() {
        all.push(Own { cpu: None, queues: others });
    }
    all
}

/// Binds this thread to a processor. If that fails the thread replies from another processor.
fn bind(cpu: usize) {
    let mut only = CpuSet::new();
    only.set(cpu);
    if let Err(error) = sched_setaffinity(None, &only) {
        tracing::debug!(cpu, %error, "not bound to its processor");
    }
}

fn serve(ops: &Ops, mut ring: FuseRing) -> io::Result<()> {
    while let Some(slot) = ring.wait()? {
        let of_slot = ring.message(slot);
        let header = Header::read(of_slot.header);
        let unique = header.unique;
        let mut message = Message { header, args: of_slot.op, payload: of_slot.payload, len: of_slot.len };
        let (error, len) = match dispatch::answer(ops, &mut message) {
            Ok(len) => (0, len),
            Err(e) => (-e.raw_os_error(), 0),
        };
        ring.reply(slot, unique, error, len)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_has_a_thread() {
        let mut allowed = CpuSet::new();
        [1, 2].iter().for_each(|cpu| allowed.set(*cpu));
        let own = queues(5, &allowed, 7);
        let count = |queue: u16| own.iter().filter(|o| o.queues.contains(&queue)).count();
        assert_eq!((0..5).map(count).collect::<Vec<_>>(), [1, 4, 4, 1, 1]);
        assert_eq!(own.last(), Some(&Own { cpu: None, queues: vec![0, 3, 4] }));
        assert!(own[..8].iter().all(|o| o.cpu.is_some_and(|cpu| o.queues == [cpu as u16])));
        assert_eq!(queues(2, &allowed, 1).len(), THREADS_MIN + 1, "never less than two for a processor");
        assert!(processors().unwrap() >= 1);
    }
}
