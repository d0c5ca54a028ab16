//! The superblock says whether there may be immutable or append-only files.

use crate::common::plain::{clean, fresh, mount};
use cffs::check::repair::{RepairOptions, repair};
use cffs::device::{Device, IoKind};
use cffs::format::Superblock;
use cffs::format::inode::{FLAG_APPEND, FLAG_IMMUTABLE, FLAG_NODUMP};
use cffs::format::superblock::{COMPAT_IMMUTABLE_FILES, SUPERBLOCK_SIZE};
use cffs::{Caller, Error, MkfsOptions, ROOT_INO};

const ROOT: Caller = Caller::ROOT;
const ALICE: Caller = Caller { uid: 1000, gid: 100 };

#[test]
fn the_first_file_with_such_a_flag_is_noted_before_it_has_it() {
    for flag in [FLAG_IMMUTABLE, FLAG_APPEND] {
        let dev = fresh(16 << 20, &MkfsOptions::default());
        let fs = mount(&dev);
        let f = fs.create(ALICE, ROOT_INO, b"f", 0o644).unwrap().ino;
        fs.set_flags(ALICE, f, FLAG_NODUMP).unwrap();
        assert!(matches!(fs.set_flags(ALICE, f, flag), Err(Error::NotPermitted)));
        assert!(!fs.may_have_immutable_files());
        fs.sync().unwrap();
        fs.set_flags(ROOT, f, flag).unwrap();
        assert!(fs.may_have_immutable_files());
        // A crash before the flag itself is durable.
        drop(fs);
        let fs = mount(&dev);
        assert!(fs.may_have_immutable_files());
        assert!(fs.superblock().feature_names().contains(&"immutable-files"));
        let f = fs.lookup(ROOT_INO, b"f").unwrap();
        assert_eq!(f.flags, FLAG_NODUMP);
        fs.set_flags(ROOT, f.ino, flag).unwrap();
        fs.close().unwrap();
        clean(&dev, "with the flag");
        let fs = mount(&dev);
        fs.set_flags(ROOT, f.ino, 0).unwrap();
        fs.close().unwrap();
        clean(&dev, "without the flag");
        assert!(mount(&dev).may_have_immutable_files(), "it says that there were some");
    }
}

#[test]
fn a_repair_notes_what_an_older_program_did_not() {
    for flags in [FLAG_NODUMP, FLAG_NODUMP | FLAG_APPEND] {
        let dev = fresh(16 << 20, &MkfsOptions::default());
        let fs = mount(&dev);
        let f = fs.create(ROOT, ROOT_INO, b"f", 0o644).unwrap().ino;
        fs.set_flags(ROOT, f, flags).unwrap();
        fs.close().unwrap();
        let mut bytes = [0; SUPERBLOCK_SIZE];
        dev.read_at(IoKind::Super, 0, &mut bytes).unwrap();
        let sb = Superblock::decode(&bytes).unwrap();
        let older = Superblock { compat: sb.compat & !COMPAT_IMMUTABLE_FILES, ..sb };
        dev.write_at(IoKind::Super, 0, &older.encode()).unwrap();
        clean(&dev, "as an older program left it");
        let marks = flags & FLAG_APPEND != 0;
        for expected in [usize::from(marks), 0] {
            let done = repair(dev.clone(), None, &RepairOptions::default(), &mut |_| true, &|_, _, _| {}).unwrap();
            assert_eq!(done.actions.len(), expected, "{:?}", done.actions);
        }
        clean(&dev, "repaired");
        assert_eq!(mount(&dev).may_have_immutable_files(), marks);
    }
}
