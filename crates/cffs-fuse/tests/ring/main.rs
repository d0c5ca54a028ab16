//! All tests of mounts once more, with messages that come by io_uring, and one of the rings themselves.

#[path = "../common/mod.rs"]
mod common;

#[path = "../mount/control.rs"]
mod control;
#[path = "../mount/durable.rs"]
mod durable;
#[path = "../mount/flags.rs"]
mod flags;
#[path = "../mount/limits.rs"]
mod limits;
#[path = "../mount/locks.rs"]
mod locks;
#[path = "../mount/messages.rs"]
mod messages;
#[path = "../mount/posix.rs"]
mod posix;
#[path = "../mount/ranges.rs"]
mod ranges;
#[path = "../mount/session.rs"]
mod session;
#[path = "../mount/times.rs"]
mod times;
#[path = "../mount/xattr.rs"]
mod xattr;

use common::{Image, can_mount};
use std::os::unix::fs::FileExt as _;

/// Messages come by io_uring.
const RING: bool = true;

/// Programs on all processors at once, more than there are threads for; the answers belong to the questions.
#[test]
fn many_at_once_get_their_own_answers() {
    if !can_mount() {
        return;
    }
    let image = Image::new();
    let m = image.mount();
    let threads: u64 = 24;
    std::thread::scope(|s| {
        for t in 0..threads {
            let m = &m;
            s.spawn(move || {
                let dir = m.path(&format!("d{t}"));
                std::fs::create_dir(&dir).unwrap();
                for i in 0..60 {
                    let path = dir.join(format!("f{i}"));
                    let byte = (t * 60 + i) as u8;
                    let size = 1 + (i as usize * 7919) % 200_000;
                    std::fs::write(&path, vec![byte; size]).unwrap();
                    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
                    assert_eq!(file.metadata().unwrap().len(), size as u64);
                    if i % 10 == 0 {
                        file.sync_all().unwrap();
                    }
                    file.write_all_at(&[byte ^ 1], size as u64 / 2).unwrap();
                    let mut expected = vec![byte; size];
                    expected[size / 2] ^= 1;
                    assert!(std::fs::read(&path).unwrap() == expected, "{}", path.display());
                }
                assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 60);
            });
        }
    });
    m.unmount();
    // Cold, so that READ comes by the ring too.
    let m = image.mount();
    for t in 0..threads {
        for i in 0..60 {
            let size = 1 + (i as usize * 7919) % 200_000;
            assert_eq!(std::fs::read(m.path(&format!("d{t}/f{i}"))).unwrap().len(), size);
        }
    }
    m.unmount();
}
