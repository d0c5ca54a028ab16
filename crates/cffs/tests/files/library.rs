//! The library as a program uses it: handles and paths, what they hold and release, and the examples.

mod examples;

use cffs::check::{CheckOptions, check};
use cffs::device::MemoryDevice;
use cffs::{Caller, Dir, Error, File, FileType, Fs, MkfsOptions, MountOptions, OpenOptions, SetAttr, mkfs};
use std::collections::BTreeSet;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn options() -> MountOptions {
    MountOptions::default().background(false)
}

fn fresh() -> (Arc<MemoryDevice>, Arc<Fs>) {
    let dev = Arc::new(MemoryDevice::new(32 << 20));
    mkfs(&*dev, None, &MkfsOptions::default()).unwrap();
    let fs = Fs::open(dev.clone(), None, options()).unwrap();
    (dev, fs)
}

/// Unmounts, and finds nothing wrong.
fn close(dev: Arc<MemoryDevice>, fs: &Fs) {
    fs.close().unwrap();
    let report = check(dev, None, &CheckOptions::default().data(true), &|_, _, _| {}).unwrap();
    assert!(report.is_clean(), "{:#?}", report.problems);
}

fn free(fs: &Fs) -> u64 {
    fs.sync().unwrap();
    fs.statfs().free
}

fn text(mut file: File) -> String {
    let mut out = String::new();
    file.read_to_string(&mut out).unwrap();
    out
}

#[test]
fn a_file_reads_writes_and_seeks_as_in_std() {
    let (dev, fs) = fresh();
    let root = fs.root().unwrap();
    let all = OpenOptions::new().read(true).write(true).create(true);
    let mut file = root.open_with("file", all).unwrap();
    write!(file, "hello, world").unwrap();
    assert_eq!(file.stream_position().unwrap(), 12);
    file.seek(SeekFrom::End(-5)).unwrap();
    let mut end = String::new();
    file.read_to_string(&mut end).unwrap();
    assert_eq!(end, "world");
    assert_eq!(file.read(&mut [0; 4]).unwrap(), 0, "at the end");
    file.seek(SeekFrom::Start(0)).unwrap();
    file.seek(SeekFrom::Current(7)).unwrap();
    file.write_all(b"W").unwrap();
    assert_eq!(file.seek(SeekFrom::Current(-100)).unwrap_err().kind(), io::ErrorKind::InvalidInput);

    let mut part = [0; 3];
    assert_eq!(file.read_at(&mut part, 6).unwrap(), 3);
    assert_eq!(&part, b" Wo");
    assert_eq!(file.write_at(b"!", 12).unwrap(), 1);
    assert_eq!(file.stream_position().unwrap(), 8, "the position stays");
    file.set_len(20).unwrap();
    assert_eq!(file.metadata().unwrap().size, 20);
    file.sync_all().unwrap();
    assert_eq!(root.read("file").unwrap(), b"hello, World!\0\0\0\0\0\0\0");

    let mut log = root.open_with("file", OpenOptions::new().append(true)).unwrap();
    root.write("file", "new").unwrap();
    log.write_all(b"er").unwrap();
    log.seek(SeekFrom::Start(0)).unwrap();
    log.write_all(b".").unwrap();
    assert_eq!(text(root.open("file").unwrap()), "newer.");
    drop((file, log));
    close(dev, &fs);
}

#[test]
fn a_file_is_opened_as_its_options_say() {
    let (dev, fs) = fresh();
    let root = fs.root().unwrap();
    let write = OpenOptions::new().write(true);
    assert!(matches!(root.open("file"), Err(Error::NotFound)));
    assert!(matches!(root.open_with("file", write), Err(Error::NotFound)));
    for senseless in [
        OpenOptions::new(),
        OpenOptions::new().read(true).create(true),
        OpenOptions::new().append(true).truncate(true),
        OpenOptions::new().append(true).write(true).truncate(true),
    ] {
        assert!(matches!(root.open_with("file", senseless), Err(Error::Invalid(_))), "{senseless:?}");
    }
    drop(root.open_with("file", write.create_new(true).mode(0o600)).unwrap());
    assert_eq!(root.metadata("file").unwrap().perm, 0o600);
    assert!(matches!(root.open_with("file", write.create_new(true)), Err(Error::Exists)));

    root.write("file", "contents").unwrap();
    assert_eq!(text(root.open_with("file", write.create(true).read(true)).unwrap()), "contents", "it is not emptied");
    let reader = root.open("file").unwrap();
    assert!(matches!(reader.write_at(b"x", 0), Err(Error::NotOpenForThis)));
    assert!(matches!(reader.set_len(0), Err(Error::NotOpenForThis)));
    let writer = root.create("file").unwrap();
    assert!(matches!(writer.read_at(&mut [0], 0), Err(Error::NotOpenForThis)));
    assert_eq!(reader.metadata().unwrap().size, 0);

    root.create_dir("dir").unwrap();
    assert!(matches!(root.open("dir"), Err(Error::IsDir)));
    assert!(matches!(root.create("dir"), Err(Error::IsDir)));
    assert!(matches!(root.create("new/"), Err(Error::IsDir)));
    assert!(matches!(root.open("file/"), Err(Error::NotDir)));
    assert!(matches!(root.open("file/x"), Err(Error::NotDir)));
    assert!(matches!(root.open(""), Err(Error::NotFound)));
    drop((reader, writer));
    close(dev, &fs);
}

#[test]
fn an_unlinked_file_lives_as_long_as_its_handle() {
    let (dev, fs) = fresh();
    let root = fs.root().unwrap();
    let before = free(&fs);
    let contents: Vec<u8> = (0..600_000u32).map(|i| (i / 7) as u8).collect();
    let handles = [root.create("a").unwrap(), root.open("a").unwrap(), root.open("a").unwrap()];
    root.write("a", &contents).unwrap();
    root.remove_file("a").unwrap();
    assert!(matches!(root.open("a"), Err(Error::NotFound)));
    for handle in handles.into_iter().rev() {
        assert!(free(&fs) <= before - contents.len() as u64 / 1024, "its space is still taken");
        let mut end = [0; 10];
        if handle.read_at(&mut end, 599_990).is_ok() {
            assert_eq!(end, contents[599_990..]);
        }
        assert_eq!(handle.metadata().unwrap().nlink, 0);
    }
    assert_eq!(free(&fs), before);
    close(dev, &fs);
}

/// Does everything once; what a handle or an operation did not release keeps its file, and so its space.
#[test]
fn handles_and_operations_release_every_reference() {
    let (dev, fs) = fresh();
    let root = fs.root().unwrap();
    let before = free(&fs);
    let use_all = |dir: &Dir| -> cffs::Result<()> {
        dir.write("file", [1; 5000])?;
        dir.hard_link("file", dir, "second")?;
        dir.symlink("file", "link")?;
        assert_eq!(dir.read_link("link")?.to_str(), Some("file"));
        assert_eq!(dir.read("link")?.len(), 5000);
        dir.set_attributes("file", SetAttr::default().perm(Some(0o400)))?;
        assert_eq!((dir.metadata("link")?.perm, dir.symlink_metadata("link")?.perm), (0o400, 0o777));
        let sub = dir.create_dir("sub")?;
        drop(dir.create_dir_all("sub/deep/deeper")?);
        drop(dir.create_dir_all("sub/deep")?);
        assert_eq!(sub.open_dir("deep/../..")?.ino(), dir.ino());
        assert!(matches!(dir.create_dir("sub"), Err(Error::Exists)));
        assert!(matches!(dir.remove_dir("sub"), Err(Error::NotEmpty)));
        assert!(matches!(dir.remove_file("sub"), Err(Error::IsDir)));
        assert!(matches!(dir.remove_dir("file"), Err(Error::NotDir)));
        assert!(matches!(dir.open_dir("file"), Err(Error::NotDir)));
        dir.rename("second", &sub, "deep/third")?;
        sub.rename("deep/third", dir, "file")?; // two names of one file: nothing happens
        assert_eq!(dir.entries()?.count() + dir.entries_with_attributes()?.count(), 6);
        dir.sync()
    };
    let dir = root.create_dir("dir").unwrap();
    use_all(&dir).unwrap();
    for file in ["file", "link", "sub/deep/third"] {
        dir.remove_file(file).unwrap();
    }
    for gone in ["sub/deep/deeper", "sub/deep", "sub"] {
        dir.remove_dir(gone).unwrap();
    }
    root.remove_dir("dir/").unwrap();
    assert!(
        matches!(dir.create("x"), Err(Error::NotFound | Error::Stale)),
        "nothing is created where no name leads to"
    );
    drop(dir);
    assert_eq!(free(&fs), before);
    close(dev, &fs);
}

#[test]
fn symbolic_links_are_followed_within_the_file_system() {
    let (dev, fs) = fresh();
    let root = fs.root().unwrap();
    let dir = root.create_dir_all("a/b").unwrap();
    dir.write("file", "here").unwrap();
    let read = |path: &str| root.read(path).map(|b| String::from_utf8(b).unwrap());
    for (target, link) in [
        ("b/file", "a/relative"),
        ("/a/b/file", "a/b/absolute"),
        ("../../../../a", "a/b/out"),
        ("loop2", "loop1"),
        ("loop1", "loop2"),
        ("a/b/new", "dangling"),
        ("a/b/", "slash"),
    ] {
        root.symlink(target, link).unwrap();
    }
    for path in ["a/relative", "/a/b/absolute", "a/b/out/b/file", "../..//a/./b/../relative", "slash/file"] {
        assert_eq!(read(path).unwrap(), "here", "{path}");
    }
    assert!(matches!(root.read("loop1"), Err(Error::TooManySymlinks)));
    assert!(matches!(root.read("dangling"), Err(Error::NotFound)));
    assert!(matches!(root.create_dir("dangling"), Err(Error::Exists)));
    let new = OpenOptions::new().write(true).create_new(true);
    assert!(matches!(root.open_with("dangling", new), Err(Error::Exists)));
    root.write("dangling", "made").unwrap();
    assert_eq!(read("a/b/new").unwrap(), "made");
    root.remove_file("slash").unwrap();
    assert_eq!(dir.entries().unwrap().count(), 4, "the link was removed, not what it led to");
    close(dev, &fs);
}

#[test]
fn an_iterator_yields_every_entry_once() {
    let (dev, fs) = fresh();
    let root = fs.root().unwrap().as_caller(Caller { uid: 7, gid: 8 });
    for count in [0, 1, 127, 128, 129, 1000] {
        let dir = root.create_dir(format!("{count}")).unwrap();
        let names: BTreeSet<String> = (0..count).map(|n| format!("name {n}")).collect();
        names.iter().for_each(|n| dir.write(n, n).unwrap());
        let plain: Vec<_> = dir.entries().unwrap().map(|e| e.unwrap()).collect();
        assert_eq!(plain.len(), count);
        assert!(plain.iter().all(|e| e.file_type == FileType::Regular && e.attr.is_none()));
        let found: BTreeSet<String> = dir
            .entries_with_attributes()
            .unwrap()
            .map(|e| {
                let e = e.unwrap();
                let attr = e.attr.unwrap();
                assert_eq!((attr.size, attr.uid, attr.gid), (e.name.len() as u64, 7, 8));
                String::from_utf8(e.name).unwrap()
            })
            .collect();
        assert_eq!(found, names);
        // Entries go while the iterator is at work.
        for e in dir.entries().unwrap() {
            dir.remove_file(String::from_utf8(e.unwrap().name).unwrap()).unwrap();
        }
        root.remove_dir(format!("{count}")).unwrap();
        assert_eq!(dir.entries().unwrap().count(), 0);
    }
    close(dev, &fs);
}

#[test]
fn an_error_survives_the_way_through_std() {
    let (_, fs) = fresh();
    let missing = fs.root().unwrap().open("x").unwrap_err();
    let io = io::Error::from(missing);
    assert_eq!(io.kind(), io::ErrorKind::NotFound);
    assert!(matches!(Error::from(io), Error::NotFound));
    let device = io::Error::from(Error::Io(io::Error::new(io::ErrorKind::TimedOut, "the device")));
    assert_eq!(device.kind(), io::ErrorKind::TimedOut);

    let mut file = fs.root().unwrap().create("x").unwrap();
    fs.close().unwrap();
    assert_eq!(file.write(b"x").unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
}

/// Counts warnings.
struct Warnings(Arc<AtomicUsize>);

impl tracing::Subscriber for Warnings {
    fn enabled(&self, of: &tracing::Metadata<'_>) -> bool {
        *of.level() == tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn dropping_a_file_system_that_is_not_closed_is_a_crash_and_a_warning() {
    let count = Arc::new(AtomicUsize::new(0));
    tracing::subscriber::with_default(Warnings(count.clone()), || {
        let (dev, fs) = fresh();
        let root = fs.root().unwrap();
        root.write("kept", "1").unwrap();
        fs.sync().unwrap();
        root.write("lost", "2").unwrap();
        drop(root);
        drop(fs);
        assert_eq!(count.load(Ordering::Relaxed), 1);

        let fs = Fs::open(dev.clone(), None, options()).unwrap();
        let root = fs.root().unwrap();
        assert_eq!(root.read("kept").unwrap(), b"1");
        assert!(matches!(root.read("lost"), Err(Error::NotFound)));
        close(dev.clone(), &fs);
        drop((root, fs));
        drop(Fs::open(dev, None, options().read_only(true)).unwrap());
        assert_eq!(count.load(Ordering::Relaxed), 1, "nothing is lost of one that was closed or only read");
    });
}
