//! Blocks that are put into the cache without being read.

use super::*;
use crate::cache::DataRun;
use crate::mkfs::MkfsOptions;
use crate::space::tests::Fixture;
use cffs_buf::AlignedBuf;

#[test]
fn a_block_in_which_another_file_has_a_part_is_not_taken_for_fresh() {
    let f = Fixture::new(64 << 20, &MkfsOptions::default());
    let g = f.geometry();
    let (fpb, fs) = (g.frags_per_block(), g.frag_size());
    assert!(fpb >= 4);
    let cache = f.journal.cache();
    f.space.reserve(4 * fpb, true).unwrap();
    let p = Placement::new(f.space.clone(), &f.sb, None, true);
    let mut fresh = Vec::new();
    let first = p.place_small(ROOT_INO, fpb, Some(cache), &mut fresh).unwrap().unwrap().run;
    assert_eq!(fresh.len(), 1, "a whole block of a free group");
    // Somebody who found no free group anywhere gets the last fragment of the next block.
    let theirs = first.end() + fpb - 1;
    assert_eq!(f.alloc_in(theirs..theirs + 1, 1).unwrap().unwrap().start, theirs);
    let bytes = Arc::new(AlignedBuf::from_slice(&vec![7; fs]));
    cache.write_data(&mut [DataRun { frag: theirs, bytes, from: 0, len: fs }]).unwrap();
    fresh.clear();
    let second = p.place_small(ROOT_INO, fpb - 1, Some(cache), &mut fresh).unwrap().unwrap().run;
    assert_eq!(second, Run { start: first.end(), len: fpb - 1 });
    assert!(fresh.is_empty());
    let mut back = vec![0; fs];
    cache.read_data(theirs, &mut back, false, None).unwrap();
    assert!(back.iter().all(|b| *b == 7), "the other file's bytes became zeros");
}
