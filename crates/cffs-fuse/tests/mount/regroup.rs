//! A regroup of a real mount, by the control channel, while programs use it.

use crate::common::{Image, Mounted, can_mount, script};
use cffs::{MkfsOptions, MountOptions, RegroupOptions, RegroupOutcome, RegroupStatus};
use cffs_fuse::MountConfig;
use cffs_fuse::control::{Control, ControlError, Request};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const DIRS: usize = 12;
const ROUNDS: usize = 20;

fn body(n: usize) -> Vec<u8> {
    (0..300 + n * 97 % 9000).map(|i| (i * 7 + n) as u8).collect()
}

fn name(n: usize) -> String {
    format!("d{}/f{}", n % DIRS, n / DIRS)
}

/// Files that are made in turns over many directories, each on the device before the next one.
fn age(m: &Mounted) {
    for d in 0..DIRS {
        fs::create_dir(m.path(&format!("d{d}"))).unwrap();
    }
    for n in 0..DIRS * ROUNDS {
        fs::write(m.path(&name(n)), body(n)).unwrap();
        fs::File::open(m.path(&name(n))).unwrap().sync_all().unwrap();
        if n % DIRS == DIRS - 1 {
            fs::File::open(m.dir()).unwrap().sync_all().unwrap();
        }
    }
}

/// An aged file system, mounted.
fn aged(image: &Image) -> (Mounted, Control) {
    let m = image.mount();
    age(&m);
    let control = Control::open(m.dir()).unwrap();
    (m, control)
}

fn same(m: &Mounted) {
    for n in 0..DIRS * ROUNDS {
        assert!(fs::read(m.path(&name(n))).unwrap() == body(n), "{}", name(n));
    }
}

fn status(control: &Control) -> RegroupStatus {
    control.call::<Option<RegroupStatus>>(&Request::RegroupStatus).unwrap().unwrap()
}

fn ended(control: &Control) -> RegroupStatus {
    loop {
        let status = status(control);
        if status.outcome.is_some() {
            return status;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn refused(outcome: Result<(), ControlError>, errno: Errno) {
    assert!(
        matches!(&outcome, Err(ControlError::Refused { refusal, .. }) if refusal.errno == errno.raw_os_error()),
        "{errno:?}: {outcome:?}"
    );
}

#[test]
fn a_regroup_starts_tells_stops_and_refuses() {
    if !can_mount() {
        return;
    }
    let image = Image::formatted(&MkfsOptions::default().group_size(64 << 10));
    let (m, control) = aged(&image);
    assert_eq!(control.call::<Option<RegroupStatus>>(&Request::RegroupStatus).unwrap(), None);
    assert_eq!(control.call::<Option<RegroupStatus>>(&Request::RegroupStop).unwrap(), None);
    let start = |options: RegroupOptions| control.call::<()>(&Request::RegroupStart(options));
    let all = RegroupOptions::default;
    let file = fs::metadata(m.path(&name(5))).unwrap().ino();
    refused(start(all().rate(Some(0))), Errno::INVAL);
    refused(start(all().directories(vec![file])), Errno::NOTDIR);
    refused(start(all().directories(vec![1 << 40])), Errno::STALE);
    assert_eq!(control.call::<Option<RegroupStatus>>(&Request::RegroupStatus).unwrap(), None, "refused, yet begun");

    // One that would take hours: there is no second one beside it, and unmounting does not wait for it.
    let slow = || all().rate(Some(10));
    start(slow()).unwrap();
    refused(start(all()), Errno::BUSY);
    assert_eq!(status(&control).outcome, None);
    let stopped = control.call::<Option<RegroupStatus>>(&Request::RegroupStop).unwrap().unwrap();
    assert_eq!(stopped.outcome, Some(RegroupOutcome::Stopped));
    start(slow()).unwrap();
    drop(control);
    m.unmount();
    let m = image.mount();
    same(&m);
    m.unmount();
}

/// While files are open, mapped, read and written: nobody sees a move, and what was written stays.
#[test]
fn nobody_sees_a_regroup() {
    if !can_mount() {
        return;
    }
    let image = Image::formatted(&MkfsOptions::default().group_size(64 << 10));
    let (m, control) = aged(&image);
    let open = fs::OpenOptions::new().read(true).write(true).open(m.path(&name(7))).unwrap();
    let over = AtomicBool::new(false);
    let mut mapped = None;
    if crate::common::has_program("python3") {
        // A mapping that is written to while its file moves.
        let text = "import mmap,os,time\n\
             f=open('d3/f1','r+b'); m=mmap.mmap(f.fileno(),0); n=len(m); i=0\n\
             while not os.path.exists('stop'):\n m[i%n]=(m[i%n]+1)%256; i+=1; time.sleep(0.001)\n\
             m[:]=bytes([9])*n; m.flush(); print(n)";
        let child = std::process::Command::new("python3").arg("-c").arg(text).current_dir(m.dir()).spawn().unwrap();
        mapped = Some(child);
    }
    let (moved, last) = std::thread::scope(|scope| {
        // The first byte of d2/f1 counts up: it never goes back.
        let writer = scope.spawn(|| {
            let f = fs::OpenOptions::new().write(true).open(m.path("d2/f1")).unwrap();
            let mut count = 0u64;
            while !over.load(Ordering::Relaxed) {
                count += 1;
                f.write_all_at(&count.to_le_bytes(), 0).unwrap();
                if count.is_multiple_of(50) {
                    f.sync_all().unwrap();
                }
            }
            count
        });
        let reader = scope.spawn(|| {
            let mut seen = 0;
            while !over.load(Ordering::Relaxed) {
                let bytes = fs::read(m.path("d2/f1")).unwrap();
                let count = u64::from_le_bytes(bytes[..8].try_into().unwrap());
                // Before the first write it holds what it was made with.
                if bytes[..8] != body(DIRS + 2)[..8] {
                    assert!(count >= seen, "{count} after {seen}");
                    seen = count;
                }
                assert!(bytes[8..] == body(DIRS + 2)[8..]);
                assert!(fs::read(m.path("d4/f4")).unwrap() == body(4 * DIRS + 4));
            }
        });
        // Slow enough for others to come between.
        control.call::<()>(&Request::RegroupStart(RegroupOptions::default().rate(Some(2 << 20)))).unwrap();
        let first = ended(&control);
        open.write_all_at(b"written through the open file", 0).unwrap();
        over.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        (first, writer.join().unwrap())
    });
    assert_eq!(moved.outcome, Some(RegroupOutcome::Complete));
    assert!(moved.files_moved > 0 && moved.read.after < moved.read.before, "{moved:?}");
    let has_mapping = mapped.is_some();
    if let Some(mut child) = mapped {
        script(&m, &["sh", "-c"], "touch stop");
        assert!(child.wait().unwrap().success());
    }
    drop(open);
    drop(control);
    m.unmount();
    let m = image.mount();
    let mut written = body(7);
    written[..29].copy_from_slice(b"written through the open file");
    for n in 0..DIRS * ROUNDS {
        let mut want = if n == 7 { written.clone() } else { body(n) };
        match name(n).as_str() {
            "d2/f1" => want[..8].copy_from_slice(&last.to_le_bytes()),
            "d3/f1" if has_mapping => want.fill(9),
            _ => {}
        }
        assert!(fs::read(m.path(&name(n))).unwrap() == want, "{}", name(n));
    }
    m.unmount();
}

#[test]
fn an_idle_mount_is_maintained_and_one_without_maintenance_is_not() {
    if !can_mount() {
        return;
    }
    let image = Image::formatted(&MkfsOptions::default().group_size(64 << 10));
    let mount = |maintenance| {
        let engine = image.engine(MountOptions::default());
        let config = MountConfig { maintenance, ..MountConfig::default() };
        (image.mount_engine(engine.clone(), &config), engine)
    };
    let (m, engine) = mount(None);
    age(&m);
    for n in 0..DIRS * ROUNDS {
        fs::write(m.path(&name(n)), body(n)).unwrap();
    }
    m.unmount();
    let credit = engine.superblock().maintenance_credit;
    assert!(credit > 32 * (64 << 10) && engine.stats().maintenance.runs == 0, "{credit}");
    let (m, engine) = mount(Some(Duration::from_millis(60)));
    let end = Instant::now() + Duration::from_secs(60);
    while engine.stats().maintenance.runs == 0 {
        assert!(Instant::now() < end, "{:?}", engine.stats().maintenance);
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(engine.stats().maintenance.bytes_moved > 0);
    same(&m);
    m.unmount();
}
