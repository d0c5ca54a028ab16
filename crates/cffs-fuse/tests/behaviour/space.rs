//! Space that was promised, space that is gone, space that is given back to the device.

use crate::disk::Mount;
use crate::raw::raw;
use crate::{Outcome, expect, failed, on_each};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::FileExt as _;

/// Fills the device to the last block, in pieces that get smaller.
///
/// # Errors
/// When writing ends with anything but ENOSPC.
fn fill(m: &Mount<'_>, name: &str) -> Outcome {
    let mut file = File::create(m.path(name)).unwrap();
    let mut piece = vec![0x5a; 4 << 20];
    // Space that a writeback frees again (what was reserved for the worst case) is filled too.
    for _ in 0..4 {
        piece.resize(4 << 20, 0x5a);
        while piece.len() >= 512 {
            match file.write(&piece) {
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::StorageFull => piece.truncate(piece.len() / 2),
                Err(e) => return Err(format!("filling the device: {e}")),
            }
        }
        match file.sync_all() {
            Err(e) if e.kind() != ErrorKind::StorageFull => return Err(format!("fsync on a full device: {e}")),
            _ => {}
        }
    }
    Ok(())
}

#[test]
fn what_was_allocated_ahead_is_written_on_a_full_device() {
    on_each("preallocated_on_full", |disk| {
        let m = disk.mount();
        const LEN: usize = 8 << 20;
        let ahead = File::create(m.path("ahead")).unwrap();
        rustix::fs::fallocate(&ahead, FallocateFlags::empty(), 0, LEN as u64).map_err(failed("fallocate"))?;
        // Allocated in pieces, so that each written one splits an extent.
        let sparse = File::create(m.path("sparse")).unwrap();
        for n in 0..32 {
            rustix::fs::fallocate(&sparse, FallocateFlags::empty(), n * 131_072, 65_536)
                .map_err(failed("fallocate"))?;
        }
        fill(&m, "filler")?;
        // Not in order: the worst case for the extents.
        let byte = |n: usize| (n % 251) as u8 + 1;
        for n in (0..LEN / 4096).step_by(2).chain((1..LEN / 4096).step_by(2)) {
            ahead.write_all_at(&[byte(n); 4096], n as u64 * 4096).map_err(failed("writing what was allocated"))?;
        }
        for n in 0..32 {
            sparse.write_all_at(&[9; 65_536], n * 131_072).map_err(failed("writing what was allocated in pieces"))?;
        }
        ahead.sync_all().map_err(failed("fsync"))?;
        sparse.sync_all().map_err(failed("fsync"))?;
        drop((ahead, sparse));
        m.unmount();
        let m = disk.mount();
        let found = fs::read(m.path("ahead")).map_err(failed("read"))?;
        let wrong = found.chunks(4096).enumerate().find(|(n, chunk)| *chunk != [byte(*n); 4096]);
        expect(found.len() == LEN && wrong.is_none(), || "what was written on the full device is not there".into())?;
        let found = fs::read(m.path("sparse")).map_err(failed("read"))?;
        expect(found.chunks(131_072).all(|c| c[..65_536] == [9; 65_536]), || "the pieces are not there".into())?;
        m.unmount();
        disk.check()
    });
}

#[test]
fn direct_writes_in_the_background_meet_the_end_of_space() {
    on_each("aio_enospc", |disk| {
        let m = disk.mount();
        let answer = raw(&["write_to_the_end", &m.path("file"), &(1u64 << 30).to_string()]);
        let lines = answer.map_err(failed("io_submit"))?;
        let (written, errors) = lines[0].split_once(' ').unwrap_or((&lines[0], ""));
        let (written, errors) = (written.parse::<u64>().unwrap(), errors.trim());
        expect(written > 200 << 20, || format!("only {written} bytes went onto a device of 320 MiB, then {errors}"))?;
        expect(matches!(errors, "" | "ENOSPC"), || format!("the errors are {errors}"))?;
        expect(written < 320 << 20, || format!("{written} bytes on 320 MiB"))
    });
}

#[test]
fn a_trim_of_less_than_a_block_is_refused() {
    on_each("trim_too_short", |disk| {
        let m = disk.mount();
        let dir = m.dir().to_str().unwrap();
        for len in ["0", "1", "4095"] {
            let answer = raw(&["trim", dir, "0", len]);
            expect(answer.as_ref().is_err_and(|e| e == "EINVAL"), || format!("FITRIM of {len} bytes: {answer:?}"))?;
        }
        let all = raw(&["trim", dir, "0", &u64::MAX.to_string()]);
        expect(all.as_ref().is_ok_and(|l| l[0].parse::<u64>().is_ok_and(|n| n > 0)), || {
            format!("FITRIM of all: {all:?}")
        })
    });
}

#[test]
fn a_full_device_says_so_and_nothing_else() {
    on_each("enospc", |disk| {
        let m = disk.mount();
        fill(&m, "filler")?;
        let one_more = fs::write(m.path("large"), vec![1; 8 << 20]);
        crate::expect_errno(one_more, Errno::NOSPC, "write on a full device")?;
        fs::remove_file(m.path("filler")).map_err(failed("removing the filler"))?;
        File::open(m.dir()).unwrap().sync_all().map_err(failed("fsync of the root"))?;
        let _ = fs::remove_file(m.path("large"));
        // XFS frees in the background.
        let mut again = Ok(());
        for _ in 0..100 {
            again = fs::write(m.path("again"), vec![1; 8 << 20]);
            if again.is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        again.map_err(failed("writing after the removal"))
    });
}
