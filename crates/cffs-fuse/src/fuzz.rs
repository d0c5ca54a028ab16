//! Random messages, right and wrong ones, against a file system in memory.
//!
//! The kernel is trusted, but a mistake in reading its messages must never end the mount, and the references that replies
//! hand out have to be those that FORGET gives back. So a made-up kernel keeps the account of what it was given, and after
//! all is forgotten and removed, the file system has to be as it was made.
//!
//! `CFFS_FUZZ_SECONDS` makes the test a campaign, `CFFS_FUZZ_SEED` repeats a seed, and `CFFS_RECORD` names the page in whose
//! table of campaigns it writes.

use crate::config::MountConfig;
use crate::device;
use crate::mount_state::MountState;
use crate::ops::Ops;
use crate::protocol::init::Capabilities;
use crate::protocol::opcode::Opcode;
use crate::protocol::wire::Header;
use cffs::check::{CheckOptions, check};
use cffs::device::MemoryDevice;
use cffs::{Caller, Fs, Ino, MkfsOptions, MountOptions, ROOT_INO, mkfs};
use fastrand::Rng;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Messages to one file system.
const MESSAGES: usize = 400;
/// Largest transfer: its replies fit the socket that stands for the connection.
const TRANSFER: u32 = 64 << 10;
const OUT_HEADER: usize = 16;
const ENTRY: usize = 128;
const DIRENT: usize = 24;

/// The kernel's side of a connection.
struct Kernel {
    rng: Rng,
    ops: Ops,
    ours: OwnedFd,
    theirs: UnixDatagram,
    /// References to inodes.
    known: BTreeMap<Ino, u64>,
    unique: u64,
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

impl Kernel {
    fn new(seed: u64, fs: Arc<Fs>) -> Kernel {
        let mut rng = Rng::with_seed(seed);
        let capabilities = Capabilities {
            no_open: rng.bool(),
            no_opendir: rng.bool(),
            acl: rng.bool(),
            drops_privileges: rng.bool(),
            setxattr_flags: rng.bool(),
            io_uring: false,
        };
        let config = MountConfig { max_transfer: TRANSFER, xattr: rng.u32(..8) > 0, ..MountConfig::default() };
        let ops = Ops::new(
            Arc::new(MountState::new(fs, "image".into(), None, crate::mount_state::no_view(), None)),
            &config,
            capabilities,
        );
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        theirs.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Kernel { rng, ops, ours: ours.into(), theirs, known: BTreeMap::from([(ROOT_INO, 1)]), unique: 2 }
    }

    fn node(&mut self) -> Ino {
        match self.rng.u32(..20) {
            0 => self.rng.u64(..300),
            1 => self.rng.u64(..) >> self.rng.u32(..64),
            2..6 => ROOT_INO,
            _ => *self.known.keys().nth(self.rng.usize(..self.known.len())).unwrap(),
        }
    }

    /// A name with its end.
    fn name(&mut self) -> Vec<u8> {
        let mut name = match self.rng.u32(..24) {
            0 => b".".to_vec(),
            1 => b"..".to_vec(),
            2 => crate::stats_file::STATS_FILE.into(),
            3 => vec![b'n'; 250 + self.rng.usize(..10)],
            4 => Vec::new(),
            5 => b"a/b".to_vec(),
            n => vec![b'a' + n as u8 % 10; 1 + n as usize % 7],
        };
        name.push(0);
        name
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let len = self.rng.usize(..=most);
        (0..len).map(|_| self.rng.u8(..)).collect()
    }

    /// The arguments of a message, mostly as the kernel would fill them.
    fn body(&mut self, op: Opcode) -> Vec<u8> {
        let mut args: Vec<u8> = match op {
            Opcode::MkNod => {
                let mode = [0o100_644, 0o010_600, 0o120_777, 0o6_0644, 0, 0o104_711][self.rng.usize(..6)];
                words(&[mode, self.rng.u32(..), 0o22, 0])
            }
            Opcode::MkDir => words(&[0o755, 0o22]),
            Opcode::Create | Opcode::TmpFile => words(&[2, 0o100_644, 0o22, 0]),
            Opcode::Read | Opcode::ReadDir | Opcode::ReadDirPlus => {
                let size = self.rng.u32(..=TRANSFER);
                let (offset, high) = (self.rng.u32(..200_000), u32::from(self.rng.u32(..30) == 0));
                words(&[0, 0, offset * self.rng.u32(..2), high, size, 0, 0, 0, 0, 0])
            }
            Opcode::Write => {
                let offset = self.rng.u32(..100_000);
                let data = self.bytes(9000);
                let high = if self.rng.u32(..50) == 0 { u32::MAX >> self.rng.u32(..8) } else { 0 };
                let mut args = words(&[0, 0, offset, high, data.len() as u32, self.rng.u32(..8), 0, 0, 0, 0]);
                args.extend_from_slice(&data);
                args
            }
            Opcode::SetAttr => {
                let mut args = vec![0; op.args_len()];
                self.rng.fill(&mut args);
                args[..4].copy_from_slice(&self.rng.u32(..1 << 12).to_ne_bytes());
                args[16..24].copy_from_slice(&self.rng.u64(..1 << 20).to_ne_bytes());
                args
            }
            Opcode::Fallocate => {
                let mode = [0, 1, 3, 0x10, 0x11, 8, 0x20, 0x40][self.rng.usize(..8)];
                words(&[0, 0, self.rng.u32(..100_000), 0, self.rng.u32(..300_000), 0, mode, 0])
            }
            Opcode::CopyFileRange | Opcode::CopyFileRange64 => {
                let to = self.node();
                let mut args = words(&[0, 0, self.rng.u32(..9000), 0, to as u32, (to >> 32) as u32, 0, 0]);
                args.extend(words(&[self.rng.u32(..9000), 0, self.rng.u32(..90_000), 0, 0, 0]));
                args
            }
            Opcode::Lseek => words(&[0, 0, self.rng.u32(..), self.rng.u32(..2) * u32::MAX, self.rng.u32(..6), 0]),
            Opcode::Rename | Opcode::Rename2 | Opcode::Link => {
                let (to, flags) = (self.node(), self.rng.u32(..4));
                let all = words(&[to as u32, (to >> 32) as u32, flags, 0]);
                all[..op.args_len()].to_vec()
            }
            Opcode::Ioctl => return self.ioctl(),
            Opcode::SetXattr => {
                let value = self.bytes(300);
                let mut args = words(&[value.len() as u32, self.rng.u32(..4), self.rng.u32(..2), 0]);
                args.truncate(self.ops.args_len(op));
                args.extend(self.xattr_name());
                args.extend(value);
                return args;
            }
            Opcode::GetXattr => {
                let mut args = words(&[self.rng.u32(..2000), 0]);
                args.extend(self.xattr_name());
                return args;
            }
            Opcode::ListXattr => words(&[self.rng.u32(..2000), 0]),
            _ => {
                let mut args = vec![0; op.args_len()];
                self.rng.fill(&mut args);
                args
            }
        };
        // Names behind the arguments; what needs none does not look.
        if !matches!(op, Opcode::Write) {
            args.extend(self.name());
            args.extend(self.name());
        }
        args
    }

    fn xattr_name(&mut self) -> Vec<u8> {
        let names = ["user.a", "user.b", "trusted.c", "security.capability", "system.posix_acl_access", "bad", ""];
        let mut name: Vec<u8> = names[self.rng.usize(..names.len())].into();
        name.push(0);
        name
    }

    fn ioctl(&mut self) -> Vec<u8> {
        let known = [cffs_buf::CONTROL_IOCTL, 0xC018_5879, 0x8100_9431, 0x4100_9432, 0x8008_6601, 0x4008_6602];
        let cmd = match self.rng.usize(..9) {
            n if n < known.len() => known[n],
            6 => 0x801c_581f,
            7 => 0x401c_5820,
            _ => self.rng.u32(..),
        };
        let mut input = self.bytes(300);
        if cmd == cffs_buf::CONTROL_IOCTL {
            let requests =
                [r#"{"op":"stats"}"#, r#"{"op":"info"}"#, r#"{"op":"sync"}"#, r#"{"op":"trim","start":0}"#, "{"];
            let text = requests[self.rng.usize(..requests.len())].as_bytes();
            input = vec![0; cffs_buf::CONTROL_LEN];
            input[..4].copy_from_slice(b"cffc");
            input[4] = 1;
            input[8] = text.len() as u8;
            input[32..32 + text.len()].copy_from_slice(text);
        }
        let out_size = (cmd >> 16) & 0x3fff;
        let mut args = words(&[0, 0, 0, cmd, 0, 0, input.len() as u32, out_size]);
        args.extend(input);
        args
    }

    /// Sends a message, and takes the reply if there is one.
    fn send(&mut self, op: Opcode, node: Ino, body: &[u8]) -> Option<(i32, Vec<u8>)> {
        let uid = [0, 0, 1000][self.rng.usize(..3)];
        self.unique += 2;
        let mut message = words(&[(Header::LEN + body.len()) as u32, op as u32]);
        message.extend_from_slice(&self.unique.to_ne_bytes());
        message.extend_from_slice(&node.to_ne_bytes());
        message.extend(words(&[uid, uid, std::process::id(), 0]));
        message.extend_from_slice(body);
        let n = message.len();
        message.resize(n.max(device::room(&self.ops)), 0xee);
        device::answer_one(&self.ops, &self.ours, &mut message, n).unwrap();
        if !op.has_reply() {
            return None;
        }
        let mut reply = vec![0; 256 << 10];
        let len = self.theirs.recv(&mut reply).unwrap_or_else(|e| panic!("no reply to {op:?}: {e}"));
        reply.truncate(len);
        assert_eq!(u32_at(&reply, 0) as usize, len, "{op:?}");
        assert_eq!(u64_at(&reply, 8), self.unique, "{op:?}");
        let error = u32_at(&reply, 4) as i32;
        assert!((-4095..=0).contains(&error) && (error == 0 || len == OUT_HEADER), "{op:?}: {error}");
        Some((error, reply.split_off(OUT_HEADER)))
    }

    /// Notes the references that a reply brings.
    fn account(&mut self, op: Opcode, reply: &[u8]) {
        let mut take = |ino: Ino| {
            if ino != 0 {
                *self.known.entry(ino).or_default() += 1;
            }
        };
        match op {
            Opcode::Lookup
            | Opcode::MkNod
            | Opcode::MkDir
            | Opcode::SymLink
            | Opcode::Link
            | Opcode::Create
            | Opcode::TmpFile => take(u64_at(reply, 0)),
            Opcode::ReadDirPlus => {
                let mut at = 0;
                while at < reply.len() {
                    let name_len = u32_at(reply, at + ENTRY + 16) as usize;
                    take(u64_at(reply, at));
                    at += (ENTRY + DIRENT + name_len).next_multiple_of(8);
                }
                assert_eq!(at, reply.len());
            }
            _ => {}
        }
    }

    /// One random message.
    fn step(&mut self) {
        let op = Opcode::ALL[self.rng.usize(..Opcode::ALL.len())];
        match op {
            // It is the last message of a mount.
            Opcode::Destroy => return,
            Opcode::Forget | Opcode::BatchForget => return self.forget_some(op),
            _ => {}
        }
        let node = self.node();
        let mut body = self.body(op);
        if self.rng.u32(..5) == 0 && !body.is_empty() {
            for _ in 0..self.rng.u32(1..4) {
                let at = self.rng.usize(..body.len());
                body[at] = self.rng.u8(..);
            }
        }
        if self.rng.u32(..10) == 0 {
            body.truncate(self.rng.usize(..=body.len()));
        }
        if let Some((0, reply)) = self.send(op, node, &body) {
            self.account(op, &reply);
        }
    }

    /// Gives back a part of the references, or of what a message of many has.
    fn forget_some(&mut self, op: Opcode) {
        let ino = *self.known.keys().nth(self.rng.usize(..self.known.len())).unwrap();
        if ino == ROOT_INO {
            return;
        }
        let n = self.rng.u64(1..=self.known[&ino]);
        self.forget(op, ino, n);
    }

    fn forget(&mut self, op: Opcode, ino: Ino, n: u64) {
        let left = self.known[&ino] - n;
        if left == 0 {
            self.known.remove(&ino)
        } else {
            self.known.insert(ino, left)
        };
        if op == Opcode::Forget {
            self.send(op, ino, &n.to_ne_bytes());
        } else {
            // It says that it is of three, and has one.
            let body: Vec<u8> = [3u64, ino, n].iter().flat_map(|w| w.to_ne_bytes()).collect();
            self.send(op, 0, &body);
        }
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_ne_bytes()).collect()
}

/// Removes all that is in a directory.
fn empty(fs: &Fs, dir: Ino) {
    let mut entries = Vec::new();
    fs.readdir(dir, 0, false, &mut |e| {
        entries.push((e.ino, e.name.clone(), e.file_type));
        true
    })
    .unwrap();
    for (ino, name, file_type) in entries {
        // Nothing is append-only or immutable any more.
        let flags = fs.lookup(dir, &name).unwrap().flags;
        if flags != 0 {
            fs.set_flags(Caller::ROOT, ino, 0).unwrap();
        }
        fs.forget(ino, 1);
        let done = if file_type == cffs::FileType::Directory {
            empty(fs, ino);
            fs.rmdir(dir, &name)
        } else {
            fs.unlink(dir, &name)
        };
        done.unwrap_or_else(|e| panic!("{}: {e}", name.escape_ascii()));
    }
}

fn run(seed: u64) -> u64 {
    let device = Arc::new(MemoryDevice::new(16 << 20));
    mkfs(&*device, None, &MkfsOptions::default()).unwrap();
    let options = MountOptions::default().background(false);
    let fs = Fs::open(device.clone(), None, options).unwrap();
    let made = fs.statfs();
    let mut kernel = Kernel::new(seed, fs.clone());
    for _ in 0..MESSAGES {
        kernel.step();
        assert!(!kernel.ops.state.panicked(), "an operation panicked");
    }
    let rest: Vec<(Ino, u64)> = kernel.known.clone().into_iter().filter(|(ino, _)| *ino != ROOT_INO).collect();
    for (ino, n) in rest {
        kernel.forget(Opcode::Forget, ino, n);
    }
    fs.set_flags(Caller::ROOT, ROOT_INO, 0).unwrap();
    empty(&fs, ROOT_INO);
    fs.sync().unwrap();
    let left = fs.statfs();
    assert_eq!(made.inodes - made.inodes_free, left.inodes - left.inodes_free, "inodes that nobody knows");
    kernel.ops.state.serving();
    assert_eq!(kernel.send(Opcode::Destroy, 0, &[]), Some((0, Vec::new())));
    let report = check(device, None, &CheckOptions::default().data(true), &|_, _, _| {}).unwrap();
    assert!(report.is_clean(), "{report:?}");
    kernel.unique / 2
}

#[test]
fn no_message_ends_the_mount_and_references_come_back() {
    let env = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let time = env("CFFS_FUZZ_SECONDS").map(Duration::from_secs);
    let first = env("CFFS_FUZZ_SEED").unwrap_or(1);
    let recorder = match std::env::var_os("CFFS_RECORD").filter(|file| !file.is_empty() && time.is_some()) {
        Some(file) => cffs_record::Recorder::open(file.as_ref(), "fuzz, messages of the kernel", "make soak").unwrap(),
        None => cffs_record::Recorder::default(),
    };
    let started = Instant::now();
    let (mut seeds, mut messages, mut failures) = (0, 0, Vec::new());
    while time.map_or(seeds < 150, |t| started.elapsed() < t) {
        let seed = first + seeds;
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(n) => messages += n,
            Err(_) => failures.push(format!("CFFS_FUZZ_SEED={seed}")),
        }
        seeds += 1;
    }
    recorder.write(&[(seeds, "file systems"), (messages, "messages")], &failures).unwrap();
    assert!(failures.is_empty(), "{failures:?}");
}
