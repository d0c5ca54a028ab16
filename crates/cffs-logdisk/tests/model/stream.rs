//! Snapshots sent from one disk to another.

use cffs_device::{Device, IoKind, MemoryDevice};
use cffs_logdisk::{
    BLOCK_BYTES, Compression, ImageOptions, ImageStore, LogDisk, LogOptions, MAIN_BRANCH, Outgoing, Progress, Receiver,
    SendReport, StreamHeader, send,
};
use std::io;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_BYTES as u64;
const BLOCKS: u64 = 6000;

fn disk(uuid: u8, compression: Compression) -> LogDisk {
    let device = Arc::new(MemoryDevice::new(128 << 20));
    let image = ImageOptions { uuid: [uuid; 16], slot_bytes: 256 << 10 };
    let store = Arc::new(ImageStore::format(device, &image).unwrap());
    LogDisk::format(store, BLOCKS * BLOCK, &LogOptions { compression, ..LogOptions::default() }).unwrap()
}

fn send_to(
    disk: &LogDisk,
    from: Option<u64>,
    to: u64,
    resume: Option<&Progress>,
    out: &mut dyn io::Write,
) -> io::Result<SendReport> {
    send(disk, &Outgoing { from, to, name: "a name", resume }, out)
}

fn contents(device: &dyn Device) -> Vec<u8> {
    let mut data = vec![1; (BLOCKS * BLOCK) as usize];
    device.read_at(IoKind::Data, 0, &mut data).unwrap();
    data
}

/// Writes, zeros and discards at random.
fn change(disk: &LogDisk, rng: &mut fastrand::Rng, n: u32) {
    for _ in 0..n {
        let at = rng.u64(0..BLOCKS - 40);
        let blocks = rng.u64(1..40);
        match rng.u32(0..8) {
            0 => disk.discard(at * BLOCK, blocks * BLOCK).unwrap(),
            1 => disk.write_at(IoKind::Data, at * BLOCK, &vec![0; (blocks * BLOCK) as usize]).unwrap(),
            _ => {
                let data: Vec<u8> = (0..blocks * BLOCK / 8).flat_map(|_| rng.u64(..).to_le_bytes()).collect();
                disk.write_at(IoKind::Data, at * BLOCK, &data).unwrap();
            }
        }
    }
}

/// A full stream and three incremental ones, each interrupted 20 times at any byte; the receiver is forgotten each time but for its
/// progress, and sometimes has crashed, so that an older progress counts.
#[test]
fn streams_that_are_interrupted_twenty_times_bring_the_same_bytes() {
    let mut rng = fastrand::Rng::with_seed(7);
    let (source, target) = (disk(1, Compression::Lz4), disk(2, Compression::None));
    let mut has = None;
    let mut earlier: Option<u64> = None;
    for round in 0..4 {
        change(&source, &mut rng, if round == 0 { 300 } else { 40 });
        let id = source.snapshot(MAIN_BRANCH, "sent").unwrap();
        let want = contents(&source.open_snapshot(id).unwrap());
        // What comes after the snapshot is not sent.
        change(&source, &mut rng, 10);
        let mut progress: Option<Progress> = None;
        let mut interrupted = 0;
        let report = loop {
            let mut stream = Vec::new();
            let sent = send_to(&source, earlier, id, progress.as_ref(), &mut stream).unwrap();
            assert_eq!(sent.stream, stream.len() as u64);
            if interrupted < 20 {
                stream.truncate(rng.usize(0..stream.len()));
            }
            let mut receiver = Receiver::new(&target, has, progress);
            match receiver.receive(&mut &stream[..]) {
                Ok(report) => break report,
                Err(e) => assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof, "{e}"),
            }
            interrupted += 1;
            if rng.u32(0..3) > 0 && receiver.progress().is_some() {
                progress = receiver.progress().map(|p| Progress::decode(&p.encode()).unwrap());
            }
        };
        assert_eq!(interrupted, 20);
        assert!(contents(&target) == want, "round {round}");
        if let Some(id) = earlier {
            source.delete_snapshot(id).unwrap();
            while source.delete_step(100).unwrap() {}
        }
        (has, earlier) = (Some(report.has), Some(id));
    }
}

#[test]
fn an_incremental_stream_is_what_changed_and_little_more() {
    let source = disk(1, Compression::None);
    let mut rng = fastrand::Rng::with_seed(3);
    let fill: Vec<u8> = (0..BLOCKS * BLOCK / 8).flat_map(|_| rng.u64(..).to_le_bytes()).collect();
    source.write_at(IoKind::Data, 0, &fill).unwrap();
    let first = source.snapshot(MAIN_BRANCH, "first").unwrap();
    let mut changed = 0;
    for i in 0..60 {
        let at = i * 100;
        let n = 1 + i % 9;
        source.write_at(IoKind::Data, at * BLOCK, &fill[8..8 + (n * BLOCK) as usize]).unwrap();
        changed += n * BLOCK;
    }
    let second = source.snapshot(MAIN_BRANCH, "second").unwrap();
    let report = send_to(&source, Some(first), second, None, &mut io::sink()).unwrap();
    assert_eq!(report.data, changed);
    assert!(report.stream <= changed + changed / 20, "{changed} bytes changed, {report:?}");
}

#[test]
fn damaged_and_foreign_streams_are_refused() {
    let mut rng = fastrand::Rng::with_seed(5);
    let source = disk(1, Compression::None);
    change(&source, &mut rng, 30);
    let first = source.snapshot(MAIN_BRANCH, "first").unwrap();
    change(&source, &mut rng, 5);
    let second = source.snapshot(MAIN_BRANCH, "second").unwrap();
    let stream = |from, to| {
        let mut out = Vec::new();
        send_to(&source, from, to, None, &mut out).unwrap();
        out
    };
    let (full, step) = (stream(None, first), stream(Some(first), second));
    let header = StreamHeader::read(&mut &step[..]).unwrap();
    assert_eq!((header.from, header.to.id, header.name.as_str()), (Some(first), second, "a name"));
    let backwards = send_to(&source, Some(second), first, None, &mut io::sink()).unwrap_err();
    assert_eq!(backwards.kind(), io::ErrorKind::InvalidInput);
    for _ in 0..40 {
        let target = disk(2, Compression::None);
        let mut bad = full.clone();
        for _ in 0..rng.usize(1..4) {
            let i = if rng.bool() { rng.usize(0..bad.len()) } else { rng.usize(0..300) };
            bad[i] ^= rng.u8(1..);
        }
        let mut receiver = Receiver::new(&target, None, None);
        let error = receiver.receive(&mut &bad[..]).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof), "{error}");
        // The same stream again, as it is, is right.
        receiver.receive(&mut &full[..]).unwrap();
        assert!(contents(&target) == contents(&source.open_snapshot(first).unwrap()));
    }
    let target = disk(2, Compression::None);
    let refused = |mut r: Receiver<'_>, bytes: &[u8]| {
        assert_eq!(r.receive(&mut &bytes[..]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    };
    refused(Receiver::new(&target, None, None), &step);
    let has = Receiver::new(&target, None, None).receive(&mut &full[..]).unwrap().has;
    refused(Receiver::new(&target, Some(has), None), &full);
    let mut other = has;
    other.store = [9; 16];
    refused(Receiver::new(&target, Some(other), None), &step);
    // What was changed behind the receiver's back is found, if it is what the stream is about.
    let (offset, _) = source.diff(first, Some(second)).unwrap()[0];
    let mut receiver = Receiver::new(&target, Some(has), None);
    receiver.receive(&mut &step[..step.len() - 20]).unwrap_err();
    target.write_at(IoKind::Data, offset, &[0x55; 512]).unwrap();
    let progress = receiver.progress().unwrap();
    let mut rest = Vec::new();
    send_to(&source, Some(first), second, Some(&progress), &mut rest).unwrap();
    assert!(rest.len() < step.len() / 2, "the data is not sent twice");
    assert_eq!(receiver.receive(&mut &rest[..]).unwrap_err().kind(), io::ErrorKind::InvalidData);
    receiver.receive(&mut &step[..]).unwrap();
    assert!(contents(&target) == contents(&source.open_snapshot(second).unwrap()));
    let foreign = Progress { from: None, ..progress };
    assert!(send_to(&source, Some(first), second, Some(&foreign), &mut io::sink()).is_err());
}
