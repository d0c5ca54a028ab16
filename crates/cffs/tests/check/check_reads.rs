//! What a check asks of the device: each metadata block once, however many threads there are, and with the same result.

use crate::common::observed::{Observed, Seen};
use cffs::check::{CheckOptions, Report, check};
use cffs::device::{Device, IoKind, MemoryDevice};
use cffs::mkfs::read_superblock;
use cffs::path::{resolve, write_file};
use cffs::{Caller, Fs, Geometry, MkfsOptions, MountOptions, QuotaKind, ROOT_INO, SetXattr, mkfs};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const ME: Caller = Caller::ROOT;

/// Requests, and how often each block was transferred.
type Reads = Arc<Mutex<(u64, BTreeMap<u64, u32>)>>;

/// Counts the reads of metadata; a check does nothing else to a device.
fn watched(inner: Arc<MemoryDevice>, block: u64) -> (Arc<Observed>, Reads) {
    let reads = Reads::default();
    let counted = reads.clone();
    let dev = Observed::new(inner, move |seen| match seen {
        // Contents of files are read where that is asked for, and may have been in a request before.
        Seen::Read(IoKind::Data, ..) => {}
        Seen::Read(_, offset, bytes) => {
            let mut reads = counted.lock().unwrap();
            reads.0 += 1;
            for at in offset / block..(offset + bytes as u64).div_ceil(block) {
                *reads.1.entry(at).or_default() += 1;
            }
        }
        Seen::Write(..) | Seen::Written(_) => panic!("a check writes nothing"),
        Seen::Flush => {}
        Seen::Discard => panic!("a check discards nothing"),
    });
    (dev, reads)
}

/// One of everything, in an order that scatters it: two branches grow at the same time.
fn fill(dev: &Arc<MemoryDevice>, log: Option<Arc<dyn Device>>) {
    let o = MountOptions::default().background(false).cache_bytes(16 << 20);
    let fs = Fs::open(dev.clone(), log, o).unwrap();
    let dir = |path: &str| {
        let (parent, name) = cffs::path::resolve_parent(&fs, path.as_bytes()).unwrap();
        let a = fs.mkdir(ME, parent.ino, name, 0o755).unwrap();
        fs.forget(a.ino, 1);
        a.ino
    };
    let write = |path: &str, len: usize| write_file(&fs, ME, path.as_bytes(), &vec![7; len]).unwrap();
    let wide = dir("/wide");
    for top in ["/a", "/b"] {
        dir(top);
    }
    for d in 0..30 {
        for top in ["/a", "/b"] {
            let at = dir(&format!("{top}/dir{d}"));
            for n in 0..25 {
                write(&format!("{top}/dir{d}/file{n}"), n * 300);
            }
            if d % 3 == 0 {
                fs.setxattr(ME, at, b"user.large", &[d as u8; 9000], SetXattr::default()).unwrap();
            }
        }
        for n in 0..100 {
            let a = fs.create(ME, wide, format!("a name of some length, {d} and {n}").as_bytes(), 0o600).unwrap();
            fs.forget(a.ino, 1);
        }
        fs.sync().unwrap();
    }
    for n in 0..400 {
        let from = resolve(&fs, format!("/a/dir{}/file{}", n % 30, n % 23).as_bytes()).unwrap().ino;
        let a = fs.link(ME, from, ROOT_INO, format!("link{n}").as_bytes()).unwrap();
        fs.forget(a.ino, 1);
    }
    for file in ["/a/sparse", "/b/sparse"] {
        write(file, 1);
        let ino = resolve(&fs, file.as_bytes()).unwrap().ino;
        for n in 0..1200 {
            fs.write(ME, ino, n * 20_000, &[1; 500]).unwrap();
        }
        fs.setxattr(ME, ino, b"user.large", &[7; 20_000], SetXattr::default()).unwrap();
    }
    fs.sync().unwrap();
    fs.close().unwrap();
}

fn without_times(mut report: Report) -> String {
    report.phases.clear();
    format!("{report:?}")
}

#[test]
fn every_metadata_block_is_read_once() {
    let plain = || MkfsOptions::default().group_size(64 << 10).log_bytes(Some(2 << 20));
    let formats = [
        ("plain", plain(), false),
        ("external log", plain(), true),
        ("inodes outside directories", plain().no_embed(true), false),
        ("no groups", plain().no_group(true), false),
        ("directories with data", plain().dirs_with_data(true), false),
        ("quotas", plain().quota(QuotaKind::ALL.to_vec()), false),
        ("checksums of data", plain().data_sums(true), false),
        ("large groups", plain().group_size(1 << 20), false),
        ("small blocks", plain().block_size(1024), false),
        ("large blocks", plain().block_size(16384).no_embed(true).data_sums(true).log_bytes(None), false),
    ];
    for (name, o, external_log) in formats {
        let inner = Arc::new(MemoryDevice::new(160 << 20));
        let log = external_log.then(|| Arc::new(MemoryDevice::new(4 << 20)));
        mkfs(&*inner, log.as_deref().map(|l| l as &dyn Device), &o).unwrap();
        fill(&inner, log.clone().map(|l| l as Arc<dyn Device>));
        let sb = read_superblock(&*inner).unwrap();
        let g = Geometry::new(&sb).unwrap();
        for data in [false, true] {
            let mut first = None;
            for jobs in [1, 2, 4] {
                let (dev, reads) = watched(inner.clone(), g.block_size() as u64);
                let options = CheckOptions::default().data(data).jobs(jobs);
                let report = check(dev.clone(), log.clone().map(|l| l as Arc<dyn Device>), &options, &|_, _, _| {});
                let report = report.unwrap();
                assert!(report.is_clean(), "{name}: {:?}", report.problems);
                assert!(report.counts.extent_nodes > 0 && report.counts.links > 400 && report.counts.files > 4000);
                let reads = reads.lock().unwrap();
                // The superblock is what tells how to read; of the log its header says that it is empty.
                let log = sb.log_start..sb.log_start + if sb.log_start > 0 { sb.log_blocks } else { 0 };
                let again: Vec<_> = reads.1.iter().filter(|(b, n)| **n > 1 && **b != 0 && !log.contains(b)).collect();
                assert!(again.is_empty(), "{name}, {jobs} jobs, data {data}: read again: {again:?}");
                // The requests are those of groups, not of blocks.
                assert!(reads.0 < 900, "{name}: {} requests", reads.0);
                let told = without_times(report);
                let first = first.get_or_insert_with(|| told.clone());
                assert_eq!(*first, told, "{name}: {jobs} jobs");
            }
        }
    }
}
