//! The superblock says whether there may be immutable or append-only files.

use crate::common::plain::{clean, fresh, mount};
use cffs::format::inode::{FLAG_APPEND, FLAG_IMMUTABLE, FLAG_NODUMP};
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
