//! Mounts of memory devices under temporary directories.

use cffs::device::MemoryDevice;
use cffs::{Fs, MkfsOptions, MountOptions, mkfs};
use cffs_fuse::{IoUring, MountConfig, Session};
pub use cffs_testenv::when_not_busy;
use cffs_testenv::{Need, have};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A formatted memory device and a directory to mount it on.
pub struct Image {
    device: Arc<MemoryDevice>,
    tmp: tempfile::TempDir,
}

/// A mounted one; unmounts when dropped.
pub struct Mounted {
    session: Option<Session>,
    dir: PathBuf,
}

/// Whether the kernel lets FUSE use io_uring; it counts when a connection is set up.
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";

/// Messages are to come by io_uring: in the test program that says so. Users cannot tell the kernel to allow it.
fn by_ring() -> bool {
    crate::RING && Need::Root.is_there()
}

/// False, with a message that cannot be overlooked, where this machine cannot mount.
pub fn can_mount() -> bool {
    have(&[Need::Root, Need::Fuse]) && (!by_ring() || have(&[Need::Ring]))
}

/// Mounts by io_uring, which the kernel is told to allow for as long as that takes.
fn mount_by_ring(engine: Arc<Fs>, dir: &Path, config: &MountConfig) -> Session {
    let config = MountConfig { io_uring: IoUring::Required, ..config.clone() };
    // Tests of other programs may do the same.
    let lock = std::fs::File::create(std::env::temp_dir().join("cffs-test-enable-uring")).unwrap();
    lock.lock().unwrap();
    let before = std::fs::read_to_string(ENABLE_URING).unwrap();
    std::fs::write(ENABLE_URING, "Y").unwrap();
    let session = cffs_fuse::mount(engine, dir, &config);
    std::fs::write(ENABLE_URING, before.trim()).unwrap();
    session.unwrap()
}

impl Image {
    pub fn new() -> Image {
        Image::formatted(&MkfsOptions::default())
    }

    pub fn formatted(options: &MkfsOptions) -> Image {
        let device = Arc::new(MemoryDevice::new(256 << 20));
        mkfs(&*device, None, options).unwrap();
        let tmp = tempfile::tempdir().unwrap();
        // Other users have to get to the mount.
        std::fs::set_permissions(tmp.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::create_dir(tmp.path().join("mnt")).unwrap();
        Image { device, tmp }
    }

    /// What the device holds now, as a crash of this moment would leave it, with a directory of its own.
    pub fn as_after_a_crash(&self) -> Image {
        use cffs::device::{Device as _, IoKind};
        let copy = Image::new();
        let mut piece = cffs_buf::AlignedBuf::zeroed(1 << 20);
        for at in (0..self.device.len()).step_by(piece.len()) {
            self.device.read_at(IoKind::Data, at, &mut piece).unwrap();
            copy.device.write_at(IoKind::Data, at, &piece).unwrap();
        }
        copy
    }

    pub fn dir(&self) -> PathBuf {
        self.tmp.path().join("mnt")
    }

    /// Bytes of the device that are not holes.
    pub fn allocated_bytes(&self) -> u64 {
        self.device.allocated_bytes()
    }

    pub fn engine(&self, options: MountOptions) -> Arc<Fs> {
        Fs::open(self.device.clone(), None, options).unwrap()
    }

    pub fn mount(&self) -> Mounted {
        self.mount_with(MountOptions::default(), &MountConfig::default())
    }

    pub fn mount_with(&self, options: MountOptions, config: &MountConfig) -> Mounted {
        self.mount_engine(self.engine(options), config)
    }

    pub fn mount_engine(&self, engine: Arc<Fs>, config: &MountConfig) -> Mounted {
        let dir = self.dir();
        let session = match by_ring() {
            true => mount_by_ring(engine, &dir, config),
            false => cffs_fuse::mount(engine, &dir, &MountConfig { io_uring: IoUring::Off, ..config.clone() }).unwrap(),
        };
        Mounted { session: Some(session), dir }
    }
}

/// What a test of a module is called where tests are chosen, for those that run themselves again.
pub fn test_name(module: &str, test: &str) -> String {
    module.split_once("::").map_or_else(|| test.to_owned(), |(_, inside)| format!("{inside}::{test}"))
}

/// Runs a script in the mount; it must succeed.
pub fn script(m: &Mounted, program: &[&str], text: &str) {
    let (first, rest) = program.split_first().unwrap();
    let out = std::process::Command::new(first).args(rest).arg(text).current_dir(m.dir()).output().unwrap();
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
}

/// False, with a message, where a program is missing.
pub fn has_program(name: &str) -> bool {
    have(&[Need::Program(name)])
}

impl Mounted {
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn session(&self) -> &Session {
        self.session.as_ref().unwrap()
    }

    pub fn into_session(mut self) -> Session {
        self.session.take().unwrap()
    }

    /// Unmounts as `umount` does and waits for the engine to be closed.
    pub fn unmount(self) {
        let session = self.into_session();
        when_not_busy(|| session.unmounter().unmount()).unwrap();
        session.wait().unwrap();
    }

    /// The counters under `fuse`.
    pub fn messages(&self) -> Messages {
        let all: serde_json::Value = serde_json::from_str(&cffs_fuse::read_stats(&self.dir).unwrap()).unwrap();
        Messages(all["fuse"].clone())
    }

    /// The messages that some work takes.
    pub fn messages_of(&self, work: impl FnOnce()) -> Messages {
        let before = self.messages();
        work();
        self.messages().minus(&before)
    }
}

/// Counts of messages by kind.
pub struct Messages(serde_json::Value);

/// Without the kinds of which there are none.
impl std::fmt::Debug for Messages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let counts = self.0.as_object().unwrap().iter().filter(|(_, n)| n.as_u64() != Some(0));
        f.debug_map().entries(counts.filter_map(|(kind, n)| Some((kind, n.as_u64()?)))).finish()
    }
}

impl Messages {
    pub fn get(&self, kind: &str) -> u64 {
        self.0[kind].as_u64().unwrap_or_else(|| panic!("no message is called {kind}"))
    }

    /// How many of `kind` came between `earlier` and `self`.
    pub fn since(&self, earlier: &Messages, kind: &str) -> u64 {
        self.get(kind) - earlier.get(kind)
    }

    /// Those that came between `earlier` and `self`.
    fn minus(&self, earlier: &Messages) -> Messages {
        let counts = self.0.as_object().unwrap().iter().filter_map(|(kind, n)| Some((kind, n.as_u64()?)));
        let counts = counts.map(|(kind, n)| (kind.clone(), serde_json::Value::from(n - earlier.get(kind))));
        Messages(counts.collect())
    }
}

/// Does the same work in up to ten rounds, until one of them costs what `holds` wants. A round may cost more than the work
/// does, because a kernel that is short of memory drops pages, names and attributes, and asks for them again.
#[track_caller]
pub fn in_some_round(mut round: impl FnMut(usize) -> Messages, holds: impl Fn(&Messages) -> bool) {
    let mut costs = Vec::new();
    for n in 0..10 {
        let cost = round(n);
        if holds(&cost) {
            return;
        }
        costs.push(cost);
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("no round costs what it should: {costs:?}");
}
