//! Directories against a model, on a real cache, journal and allocator over memory.

use super::*;
use crate::cache::Cache;
use crate::cache::PrefetchMode;
use crate::extent::{self, Mapping};
use crate::format::LongestRuns;
use crate::format::Run;
use crate::format::dirindex::{BUCKET_FLAGS, BUCKET_OVERFLOWED, bucket_of, bucket_target, pairs};
use crate::format::extent::LOGICAL_END;
use crate::format::system::Counters;
use crate::format::{Extent, InodeFormat, get_u32};
use crate::inode::InodeLocation;
use crate::journal::MetadataMode;
use crate::journal::{CommitHook, Journal, read_header};
use crate::mkfs::{MkfsOptions, mkfs};
use crate::reservation::Reservation;
use cffs_device::{Device, MemoryDevice};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

struct Hook(Arc<Space>);

impl CommitHook for Hook {
    fn counters(&self) -> Counters {
        self.0.counters()
    }
    fn committed(&self, freed: Vec<Run>) {
        self.0.on_commit(freed);
    }
}

/// Allocates so many blocks behind what it is to be near.
struct NearAllocator<'a>(&'a Space, u64);

impl DirAllocator for NearAllocator<'_> {
    fn allocate_dir_blocks(
        &self,
        reservation: &Reservation,
        _: &Inode,
        goal: Option<BlockAddr>,
        want: u64,
        min: u64,
    ) -> Result<Option<Run>> {
        self.0.alloc_meta_near(reservation, goal.map_or(0, |goal| goal + self.1), want, min)
    }
}

/// A directory with nothing above it.
struct World {
    dev: Arc<MemoryDevice>,
    cache: Arc<Cache>,
    space: Arc<Space>,
    journal: Journal,
    seed: [u64; 2],
    inode: Inode,
    state: DirState,
    names: BTreeMap<Vec<u8>, Ino>,
    orphans: BTreeMap<Ino, (BlockAddr, usize)>,
    next_ino: Ino,
    free_at_start: u64,
    /// Blocks between one block of the directory and the next.
    apart: u64,
}

impl World {
    fn new(block_size: u32, mib: u64) -> World {
        let dev = Arc::new(MemoryDevice::new(mib << 20));
        let o = MkfsOptions {
            block_size,
            uuid: Some([7; 16]),
            hash_seed: Some([3, 4]),
            now_ns: Some(1),
            log_bytes: Some(((mib << 20) / 4).max(if block_size > 16384 { 24 << 20 } else { 0 })),
            ..MkfsOptions::default()
        };
        let sb = mkfs(&*dev, None, &o).unwrap();
        let geo = Geometry::new(&sb).unwrap();
        let as_device: Arc<dyn Device> = dev.clone();
        let cache = Arc::new(Cache::new(as_device, geo, 256 << 20, PrefetchMode::Adaptive));
        let header = read_header(&*dev, &sb).unwrap();
        let id = BlockId { kind: BlockKind::Counters, addr: geo.counters_block(), owner: 0 };
        let counters_buf = cache.read_meta(id).unwrap();
        let counters = Counters::decode(&counters_buf.read());
        let space = Arc::new(Space::load(cache.clone(), counters, LongestRuns::UNKNOWN, 0).unwrap());
        let journal = Journal::new(cache.clone(), None, &sb, header, MetadataMode::Journal);
        journal.connect(Box::new(Hook(space.clone())), counters_buf);
        let mut inode = Inode::new(77, FileType::Directory.mode_bits() | 0o755, 0);
        inode.nlink = 2;
        let free_at_start = space.free_frags();
        World {
            dev,
            cache,
            space,
            journal,
            seed: sb.hash_seed,
            inode,
            state: DirState::default(),
            names: BTreeMap::new(),
            orphans: BTreeMap::new(),
            next_ino: 100,
            free_at_start,
            apart: 0,
        }
    }

    /// One with the names `name(0)` to `name(n - 1)`.
    fn with_names(block_size: u32, mib: u64, n: u64) -> World {
        let mut w = World::new(block_size, mib);
        (0..n).for_each(|i| w.create(&name(i), true).unwrap());
        w
    }

    /// The same, with blocks that are more than a group apart.
    fn in_pieces(n: u64) -> World {
        let mut w = World::new(4096, 64);
        w.apart = w.geo().group_blocks();
        (0..n).for_each(|i| w.create(&name(i), true).unwrap());
        w
    }

    fn geo(&self) -> Geometry {
        *self.cache.geometry()
    }

    fn cx(&self) -> DirCtx<'_> {
        DirCtx { cache: &self.cache, seed: self.seed, location: InodeLocation::System }
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Found>> {
        lookup(&self.cx(), &self.inode, &self.state, name)
    }

    fn create(&mut self, name: &[u8], embed: bool) -> Result<()> {
        assert_eq!(self.lookup(name)?.map(|f| f.ino), self.names.get(name).copied());
        if self.names.contains_key(name) {
            return Ok(());
        }
        self.create_unseen(name, embed)
    }

    fn create_unseen(&mut self, name: &[u8], embed: bool) -> Result<()> {
        let g = self.geo();
        let ino = self.next_ino;
        let mut file = Inode::new(ino, FileType::Regular.mode_bits() | 0o644, 0);
        if !fits(&g, name.len(), file.encoded_len()) {
            file.inline_len = 16;
        }
        let room = if embed { file.encoded_len() } else { 0 };
        let cx = DirCtx { cache: &self.cache, seed: self.seed, location: InodeLocation::System };
        let txn = self.journal.begin(log_bytes_for_insert(&g) + self.space.log_bytes_for_init() + 4096)?;
        let allocator = NearAllocator(&self.space, self.apart);
        let (inode, state) = (&mut self.inode, &self.state);
        let slot = prepare_insert(&cx, &txn, &self.space, &allocator, inode, state, name, room)?;
        let inode = embed.then_some(&file);
        let new = NewEntry { name, hash: 0, ino, file_type: FileType::Regular, inode, inode_room: room };
        insert(&cx, &txn, &mut self.inode, &self.state, slot, &new)?;
        self.names.insert(name.to_vec(), ino);
        self.next_ino += 1;
        Ok(())
    }

    fn remove(&mut self, name: &[u8]) -> Result<()> {
        let Some(found) = self.lookup(name)? else {
            assert!(!self.names.contains_key(name), "{name:?} is lost");
            return Ok(());
        };
        let cx = DirCtx { cache: &self.cache, seed: self.seed, location: InodeLocation::System };
        let txn = self.journal.begin(log_bytes_for_remove(&self.geo()))?;
        remove(&cx, &txn, &self.space, &mut self.inode, &self.state, &found, name)?;
        assert_eq!(self.names.remove(name), Some(found.ino));
        Ok(())
    }

    fn orphan(&mut self, name: &[u8]) -> Result<()> {
        let Some(found) = self.lookup(name)?.filter(|f| f.kind == EntryKind::Embedded) else { return Ok(()) };
        let cx = DirCtx { cache: &self.cache, seed: self.seed, location: InodeLocation::System };
        let txn = self.journal.begin(log_bytes_for_remove(&self.geo()))?;
        orphan(&cx, &txn, &mut self.inode, &self.state, &found, name)?;
        self.names.remove(name);
        self.orphans.insert(found.ino, (found.block, found.offset));
        Ok(())
    }

    fn remove_orphan(&mut self, ino: Ino) -> Result<()> {
        let Some((block, offset)) = self.orphans.remove(&ino) else { return Ok(()) };
        let cx = DirCtx { cache: &self.cache, seed: self.seed, location: InodeLocation::System };
        let txn = self.journal.begin(log_bytes_for_remove(&self.geo()))?;
        remove_orphan(&cx, &txn, &self.space, &mut self.inode, &self.state, block, offset)
    }

    /// As after a new mount: nothing in memory.
    fn forget_memory(&mut self) {
        self.journal.commit().unwrap();
        self.journal.checkpoint().unwrap();
        self.cache.drop_clean();
        self.state = DirState::default();
    }

    fn list(&self) -> BTreeMap<Vec<u8>, Ino> {
        let mut all = BTreeMap::new();
        let mut last = 0;
        read(&self.cx(), &self.inode, &self.state, 0, &mut |e, cookie, buf| {
            assert!(cookie > last, "cookies ascend");
            last = cookie;
            assert_eq!(dirblock::known_entry(&buf.read(), e.offset).ino, e.ino);
            assert!(all.insert(e.name.to_vec(), e.ino).is_none());
            Ok(true)
        })
        .unwrap();
        all
    }

    fn extents(&self) -> Vec<Extent> {
        let (mut at, mut all) = (0, Vec::new());
        while at < LOGICAL_END {
            match extent::lookup(&self.cache, &self.inode, at).unwrap() {
                Mapping::Hole { until } => at = until,
                Mapping::Data(e) => {
                    all.push(e);
                    at = e.end();
                }
            }
        }
        all
    }

    /// Everything that the module's documentation says of a valid directory. Only the blocks are looked at.
    fn verify(&self) {
        let g = self.geo();
        let per = g.frags_per_block();
        let extents = self.extents();
        let data: u64 = extents.iter().map(|e| e.len).sum();
        if matches!(self.inode.format, InodeFormat::Extents(_)) {
            assert_eq!(self.inode.frags, data);
        } else {
            assert!(self.inode.frags > data && self.inode.frags <= data + data / 4 + 64 * per);
        }
        let mut place = BTreeMap::new();
        for e in &extents {
            assert_eq!((e.logical % per, e.start % per, e.len % per), (0, 0, 0));
            for i in 0..e.len / per {
                place.insert(e.logical / per + i, g.block_of_frag(e.start) + i);
            }
        }
        assert_eq!(self.inode.size % g.block_size() as u64, 0);
        let size = self.inode.size >> g.block_shift;
        let buckets = self.inode.index_buckets;
        for n in 0..=buckets {
            let known = self.state.known_bucket(&self.cache, self.inode.ino, n);
            let cached = place.get(&(DIR_BLOCKS_MAX + u64::from(n))).and_then(|a| self.cache.peek(*a));
            // A block that nobody finds in the cache any more would take changes along into nowhere.
            assert!(known.is_none_or(|k| n < buckets && cached.is_some_and(|c| Arc::ptr_eq(&k, &c))), "bucket {n}");
        }
        let (mut names, mut orphans) = (BTreeMap::new(), BTreeSet::new());
        let mut expected: HashMap<(u32, u32), i64> = HashMap::new();
        for (lblock, addr) in place.range(..size) {
            let buf =
                self.cache.read_meta(BlockId { kind: BlockKind::Dir, addr: *addr, owner: self.inode.ino }).unwrap();
            let b = buf.read();
            dirblock::validate(&b).unwrap();
            assert_eq!(crate::format::get_u64(&b, dirblock::DIR_LBLOCK), *lblock);
            for e in dirblock::entries(&b) {
                if e.is_name() {
                    assert_eq!(e.hash, self.cx().hash(e.name));
                    *expected.entry((e.hash, *lblock as u32)).or_default() += 1;
                    names.insert(e.name.to_vec(), e.ino);
                } else if e.kind == EntryKind::Orphan {
                    orphans.insert(e.ino);
                    assert_eq!(self.orphans[&e.ino], (*addr, e.offset));
                }
            }
        }
        assert_eq!(names, self.names);
        assert!(orphans.iter().eq(self.orphans.keys()));
        assert_eq!(self.inode.aux, names.len() as u64);
        if size > 0 {
            assert!(place.contains_key(&(size - 1)), "the size ends with a block");
        }
        if names.is_empty() && orphans.is_empty() {
            assert_eq!((size, self.inode.frags, buckets), (0, 0, 0), "an empty directory has nothing");
        }
        let ahead = place.range(size..DIR_BLOCKS_MAX).count() as u64;
        let live = place.range(..size).count() as u64;
        assert!(ahead <= 256 + 16 && ahead <= size / 6 + 16, "{ahead} blocks ahead of {live} in {size}");
        if buckets == 0 {
            assert!(size <= UNINDEXED_BLOCKS);
            assert_eq!(place.range(DIR_BLOCKS_MAX..).count(), 0);
            return;
        }
        let mut overflowed = false;
        for n in 0..buckets {
            let addr = place[&(DIR_BLOCKS_MAX + u64::from(n))];
            let id = BlockId { kind: BlockKind::DirIndex, addr, owner: self.inode.ino };
            let buf = self.cache.read_meta(id).unwrap();
            let b = buf.read();
            dirindex::validate(&b).unwrap();
            assert_eq!(get_u32(&b, dirindex::BUCKET_NUMBER), n);
            overflowed |= get_u32(&b, BUCKET_FLAGS) & BUCKET_OVERFLOWED != 0;
            for pair in pairs(&b) {
                assert_eq!(bucket_of(pair.0, buckets), n);
                *expected.get_mut(&pair).expect("the pair of a name") -= 1;
            }
        }
        assert!(expected.values().all(|n| *n == 0 || overflowed && *n > 0), "the index agrees with the names");
        let beyond = place.range(DIR_BLOCKS_MAX + u64::from(buckets)..).count();
        assert!(beyond <= 256 + 16 && beyond <= buckets as usize / 4 + 16, "{beyond} buckets ahead of {buckets}");
    }

    fn verify_all_lookups(&self) {
        for (name, ino) in &self.names {
            let found = self.lookup(name).unwrap().unwrap_or_else(|| panic!("{name:?} is lost"));
            assert_eq!(found.ino, *ino);
        }
        assert_eq!(self.list(), self.names);
    }

    fn verify_nothing_leaked(&self) {
        self.journal.commit().unwrap();
        assert_eq!((self.inode.frags, self.extents().len()), (0, 0));
        assert_eq!(self.space.free_frags(), self.free_at_start);
    }
}

fn name(i: u64) -> Vec<u8> {
    format!("file-{i}").into_bytes()
}

#[derive(Clone, Debug)]
enum Op {
    Create {
        id: u16,
        embed: bool,
    },
    Remove {
        id: u16,
    },
    Orphan {
        id: u16,
    },
    RemoveOrphan {
        nth: u8,
    },
    Forget,
    /// The cache loses what it can, the state of the directory remains.
    Evict,
    Clear {
        descending: bool,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (0u16..400, prop::bool::weighted(0.7)).prop_map(|(id, embed)| Op::Create { id, embed }),
        5 => (0u16..400).prop_map(|id| Op::Remove { id }),
        2 => (0u16..400).prop_map(|id| Op::Orphan { id }),
        2 => any::<u8>().prop_map(|nth| Op::RemoveOrphan { nth }),
        1 => Just(Op::Forget),
        1 => Just(Op::Evict),
        1 => any::<bool>().prop_map(|descending| Op::Clear { descending }),
    ]
}

/// Names of all lengths: most are short, some as long as can be.
fn varied_name(id: u16) -> Vec<u8> {
    let len = if id.is_multiple_of(5) { 255 - usize::from(id) % 40 } else { 3 + usize::from(id) % 17 };
    let mut n = format!("{id}-").into_bytes();
    n.resize(len.max(n.len()), b'x');
    n
}

fn run_ops(block_size: u32, ops: Vec<Op>, grow_first: u16) {
    let mut w = World::new(block_size, 64);
    for id in 0..grow_first {
        w.create(&varied_name(id), id % 3 > 0).unwrap();
    }
    w.verify();
    for op in ops {
        match op {
            Op::Create { id, embed } => w.create(&varied_name(id), embed).unwrap(),
            Op::Remove { id } => w.remove(&varied_name(id)).unwrap(),
            Op::Orphan { id } => w.orphan(&varied_name(id)).unwrap(),
            Op::RemoveOrphan { nth } => {
                let ino = w.orphans.keys().nth(nth as usize % w.orphans.len().max(1)).copied();
                ino.map_or(Ok(()), |ino| w.remove_orphan(ino)).unwrap();
            }
            Op::Forget => w.forget_memory(),
            Op::Evict => {
                w.journal.commit().unwrap();
                w.journal.checkpoint().unwrap();
                w.cache.drop_clean();
            }
            Op::Clear { descending } => {
                // A stretch of names goes, from one end.
                let mut names: Vec<_> = w.names.keys().cloned().collect();
                if descending {
                    names.reverse();
                }
                names.iter().take(names.len() * 3 / 4).for_each(|n| w.remove(n).unwrap());
            }
        }
        w.verify();
    }
    w.verify_all_lookups();
    let orphans: Vec<Ino> = w.orphans.keys().copied().collect();
    for n in w.names.keys().cloned().collect::<Vec<_>>() {
        w.remove(&n).unwrap();
    }
    assert!(is_empty(&w.inode));
    w.verify();
    for ino in orphans {
        assert!(has_orphans(&w.cx(), &w.inode, &w.state).unwrap());
        w.remove_orphan(ino).unwrap();
    }
    assert!(!has_orphans(&w.cx(), &w.inode, &w.state).unwrap());
    w.verify();
    w.verify_nothing_leaked();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_history_in_blocks_of_512(ops in prop::collection::vec(op(), 1..150), grow in 0u16..200) {
        run_ops(512, ops, grow);
    }

    #[test]
    fn any_history_in_blocks_of_4096(ops in prop::collection::vec(op(), 1..150), grow in 0u16..400) {
        run_ops(4096, ops, grow);
    }

    #[test]
    fn any_history_in_blocks_of_65536(ops in prop::collection::vec(op(), 1..80), grow in 0u16..400) {
        run_ops(65536, ops, grow);
    }
}

#[test]
fn a_hundred_thousand_names_come_and_go() {
    let n = 100_000;
    let mut w = World::with_names(4096, 512, n);
    w.verify();
    let blocks = w.inode.size >> 12;
    assert!(blocks < n / 17 + 9, "{blocks} blocks");
    assert!(w.extents().len() < 120, "{} extents", w.extents().len());
    let target = bucket_target(4096);
    assert!(u64::from(w.inode.index_buckets).abs_diff(n.div_ceil(target)) <= 1);
    w.forget_memory();
    w.verify_all_lookups();
    assert!(w.lookup(b"file").unwrap().is_none());
    // Every second one in an arbitrary order, then new ones: they fill the gaps first where these are known.
    for i in 0..n / 2 {
        w.remove(&name(i * 2 * 7919 % n)).unwrap();
    }
    w.verify();
    for i in 0..n / 4 {
        w.create(&name(n + i), i % 2 == 0).unwrap();
    }
    w.verify();
    for name in w.names.keys().rev().cloned().collect::<Vec<_>>() {
        w.remove(&name).unwrap();
    }
    w.verify();
    w.verify_nothing_leaked();
}

#[test]
fn a_shrinking_directory_gives_space_back_as_it_shrinks() {
    let n = 40_000;
    let mut w = World::with_names(4096, 256, n);
    let full = w.inode.frags;
    for i in (0..n).rev() {
        w.remove(&name(i)).unwrap();
        if i == n / 2 {
            assert!(w.inode.frags < full * 6 / 10, "{} of {full} fragments for half of the names", w.inode.frags);
            w.verify();
        }
        if i == n / 50 {
            assert!(w.inode.frags < full / 20, "{} of {full} fragments for a fiftieth", w.inode.frags);
            w.verify();
        }
    }
    w.verify_nothing_leaked();
}

#[test]
fn a_queue_does_not_grow_without_end() {
    let mut w = World::with_names(4096, 64, 2000);
    let size = w.inode.size;
    for i in 0..40_000 {
        w.create(&name(2000 + i), true).unwrap();
        w.remove(&name(i)).unwrap();
    }
    w.verify();
    assert!(w.inode.size < size * 5, "from {size} to {} bytes for as many names", w.inode.size);
}

/// Names whose hashes agree in the lower bits, so that they share a bucket for a long time.
fn colliding_names(seed: [u64; 2], n: usize) -> Vec<Vec<u8>> {
    (0u64..).map(name).filter(|s| dirindex::name_hash(seed, s) & 0xfff == 5).take(n).collect()
}

#[test]
fn a_bucket_may_overflow() {
    let mut w = World::new(512, 64);
    let names = colliding_names(w.seed, 150);
    for i in 0..60 {
        w.create(format!("other{i}").as_bytes(), true).unwrap();
    }
    for n in &names {
        w.create(n, true).unwrap();
    }
    w.verify();
    let bucket = index::bucket(&w.cx(), &w.inode, &w.state, 5).unwrap();
    assert_ne!(get_u32(&bucket.read(), BUCKET_FLAGS) & BUCKET_OVERFLOWED, 0, "150 pairs in a bucket for 56");
    drop(bucket);
    w.forget_memory();
    w.verify_all_lookups();
    let missing = colliding_names(w.seed, 151).pop().unwrap();
    assert!(w.lookup(&missing).unwrap().is_none());
    // Splitting and joining keep what is known and what is not.
    for i in 60..3000 {
        w.create(format!("other{i}").as_bytes(), false).unwrap();
    }
    w.verify();
    w.verify_all_lookups();
    for i in 0..2990 {
        w.remove(format!("other{i}").as_bytes()).unwrap();
    }
    w.verify();
    w.verify_all_lookups();
    for n in names.iter().rev() {
        w.remove(n).unwrap();
        w.verify();
    }
    for i in 2990..3000 {
        w.remove(format!("other{i}").as_bytes()).unwrap();
    }
    w.verify();
    w.verify_nothing_leaked();
}

#[test]
fn a_listing_in_pieces_shows_what_stays_exactly_once() {
    for n in [60u64, 3000] {
        let mut w = World::with_names(4096, 64, n);
        let (mut seen, mut cookie, mut round) = (Vec::new(), 0, 0u64);
        loop {
            let mut batch = Vec::new();
            read(&w.cx(), &w.inode, &w.state, cookie, &mut |e, after, _| {
                if batch.len() == 7 {
                    return Ok(false);
                }
                cookie = after;
                batch.push(e.name.to_vec());
                Ok(true)
            })
            .unwrap();
            if batch.is_empty() {
                break;
            }
            // The entry at the cookie goes, and others with it; new ones come.
            for b in &batch {
                if round.is_multiple_of(2) {
                    w.remove(b).unwrap();
                }
            }
            w.create(&name(10 * n + round), true).unwrap();
            if round.is_multiple_of(50) {
                w.forget_memory();
            }
            seen.extend(batch);
            round += 1;
        }
        let all: BTreeSet<_> = seen.iter().collect();
        assert_eq!(all.len(), seen.len(), "no name twice");
        assert!((0..n).all(|i| all.contains(&name(i))), "all that were there at the start were shown");
        w.verify();
    }
}

#[test]
fn a_damaged_block_hides_only_its_own_names() {
    for n in [80u64, 4000] {
        let mut w = World::with_names(4096, 64, n);
        let victim = w.lookup(&name(n / 2)).unwrap().unwrap();
        let (block, lblock) = (victim.block, victim.lblock);
        drop(victim);
        let inside: BTreeSet<Vec<u8>> = {
            let buf = blocks::read(&w.cx(), &w.inode, &w.state, lblock).unwrap();
            let b = buf.read();
            dirblock::entries(&b).filter(|e| e.is_name()).map(|e| e.name.to_vec()).collect()
        };
        w.forget_memory();
        w.dev.write_at(cffs_device::IoKind::Meta, block << 12, &[0xa5; 512]).unwrap();
        for (name, ino) in &w.names {
            match w.lookup(name) {
                Ok(Some(f)) => assert!(f.ino == *ino && !inside.contains(name)),
                Ok(None) => panic!("{name:?} is said not to exist"),
                Err(e) => assert!(matches!(e, Error::Corrupt(_)) && inside.contains(name), "{e}"),
            }
        }
        if n > 1000 {
            assert!(w.lookup(b"not there").unwrap().is_none());
            w.create(b"new one", true).unwrap();
        } else {
            assert!(w.lookup(b"not there").is_err(), "it might be in the damaged block");
        }
        let err = read(&w.cx(), &w.inode, &w.state, 0, &mut |_, _, _| Ok(true)).unwrap_err();
        assert!(err.to_string().contains(&format!("block {block}")), "{err}");
    }
}

#[test]
fn a_full_file_system_leaves_a_valid_directory() {
    let mut w = World::new(4096, 8);
    let mut i = 0;
    let err = loop {
        match w.create(&name(i), true) {
            Ok(()) => i += 1,
            Err(e) => break e,
        }
    };
    assert!(matches!(err, Error::NoSpace), "{err}");
    assert!(i > 10_000, "only {i} names in 8 MiB");
    w.verify();
    // Holes in the middle must be possible, or put up with, when no space is left.
    for k in 0..i {
        w.remove(&name(k * 7919 % i)).unwrap();
    }
    for k in 0..i {
        w.remove(&name(k)).unwrap();
    }
    w.verify();
    w.verify_nothing_leaked();
}

#[test]
fn names_that_cannot_be_are_refused() {
    let mut w = World::new(512, 16);
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
        assert!(matches!(w.create_unseen(bad, true), Err(Error::Invalid(_))), "{bad:?}");
    }
    assert!(matches!(w.create_unseen(&[b'x'; 256], true), Err(Error::NameTooLong)));
    assert!(w.create(&[b'x'; 255], true).is_ok());
    assert!(!fits(&w.geo(), 255, 120 + 64), "in 512-byte blocks the longest names leave less room for inodes");
    w.verify();
}

#[test]
fn what_a_failed_creation_leaves_can_be_released() {
    let mut w = World::new(4096, 16);
    let release = |w: &mut World| {
        let cx = DirCtx { cache: &w.cache, seed: w.seed, location: InodeLocation::System };
        let txn = w.journal.begin(log_bytes_for_remove(&w.geo())).unwrap();
        release(&cx, &txn, &w.space, &mut w.inode, &w.state)
    };
    release(&mut w).unwrap();
    for round in 0..2 {
        let cx = DirCtx { cache: &w.cache, seed: w.seed, location: InodeLocation::System };
        let txn = w.journal.begin(log_bytes_for_insert(&w.geo()) + w.space.log_bytes_for_init()).unwrap();
        let allocator = NearAllocator(&w.space, w.apart);
        let slot = prepare_insert(&cx, &txn, &w.space, &allocator, &mut w.inode, &w.state, b"a", 184).unwrap();
        assert_eq!((slot.new_block, slot.offset), (round == 0, META_HEADER_SIZE), "the block is used again");
    }
    assert!(is_empty(&w.inode) && w.inode.size == 4096);
    w.forget_memory();
    assert!(w.lookup(b"a").unwrap().is_none());
    release(&mut w).unwrap();
    w.verify();
    w.verify_nothing_leaked();
    w.create(b"b", true).unwrap();
    assert_eq!(w.inode.size, 4096);
    assert!(matches!(release(&mut w), Err(Error::NotEmpty)));
    w.orphan(b"b").unwrap();
    assert!(matches!(release(&mut w), Err(Error::NotEmpty)), "an orphan is still there");
    let ino = *w.orphans.keys().next().unwrap();
    w.remove_orphan(ino).unwrap();
    w.verify();
    w.verify_nothing_leaked();
}

#[test]
fn replacing_a_name_inserts_before_it_removes() {
    let mut w = World::with_names(4096, 16, 500);
    for i in 0..500 {
        let old = w.lookup(&name(i)).unwrap().unwrap();
        w.create_unseen(&name(i), false).unwrap();
        let new_ino = w.names[&name(i)];
        let cx = DirCtx { cache: &w.cache, seed: w.seed, location: InodeLocation::System };
        let txn = w.journal.begin(log_bytes_for_remove(&w.geo())).unwrap();
        remove(&cx, &txn, &w.space, &mut w.inode, &w.state, &old, &name(i)).unwrap();
        drop(txn);
        assert_eq!(w.lookup(&name(i)).unwrap().unwrap().ino, new_ino);
        let again = DirCtx { cache: &w.cache, seed: w.seed, location: InodeLocation::System };
        let txn = w.journal.begin(log_bytes_for_remove(&w.geo())).unwrap();
        let twice = remove(&again, &txn, &w.space, &mut w.inode, &w.state, &old, &name(i));
        assert!(matches!(twice, Err(Error::NotFound)));
    }
    w.verify();
    w.verify_all_lookups();
}

#[test]
fn a_cold_lookup_in_a_large_directory_reads_three_blocks() {
    let n = 60_000;
    let mut w = World::with_names(4096, 256, n);
    assert!(matches!(w.inode.format, InodeFormat::Tree { height: 1, .. }));
    for i in (0..n).step_by(4999) {
        w.forget_memory();
        let misses = || w.cache.counters.misses.load(std::sync::atomic::Ordering::Relaxed);
        let before = misses();
        assert!(w.lookup(&name(i)).unwrap().is_some());
        // A leaf of the extent map for the bucket, and perhaps another for the block.
        assert!(misses() - before <= 4, "{} blocks read", misses() - before);
    }
}

#[test]
fn a_small_directory_in_pieces_is_read_as_far_as_its_names_are_needed() {
    let n = 80;
    let mut w = World::in_pieces(n);
    let known = |w: &World| w.state.names.read().as_ref().map_or(0, |names| names.known_to);
    let end = |w: &World| blocks::size_blocks(&w.cx(), &w.inode);
    assert!((3..UNINDEXED_BLOCKS).contains(&end(&w)) && known(&w) == end(&w), "who makes names knows them");
    w.forget_memory();
    let last = (0..n).fold(0, |last, i| {
        let found = w.lookup(&name(i)).unwrap().unwrap();
        assert_eq!(known(&w), found.lblock.max(last) + 1);
        found.lblock.max(last)
    });
    assert_eq!(last + 1, end(&w));
    w.forget_memory();
    assert!(w.lookup(b"not there").unwrap().is_none() && known(&w) == end(&w));
    // Who makes a name knows the rest, and where there is room.
    for removed in [0, n / 2, n - 1] {
        w.remove(&name(removed)).unwrap();
        w.forget_memory();
        let first = w.names.keys().find(|name| w.lookup(name).unwrap().unwrap().lblock == 0).cloned().unwrap();
        w.forget_memory();
        w.lookup(&first).unwrap().unwrap();
        assert_eq!(known(&w), 1);
        let before = end(&w);
        w.create_unseen(&name(removed), true).unwrap();
        assert_eq!((known(&w), end(&w)), (before, before), "it goes where the other one was");
        w.verify();
        w.verify_all_lookups();
    }
}

#[test]
fn a_directory_that_grows_and_shrinks_knows_its_names() {
    let mut w = World::with_names(4096, 64, 20);
    let known = |w: &World| w.state.names.read().as_ref().map(|names| names.known_to);
    let mut i = 20;
    for blocks in [3, UNINDEXED_BLOCKS, 2, UNINDEXED_BLOCKS] {
        while blocks::size_blocks(&w.cx(), &w.inode) < blocks {
            w.create_unseen(&name(i), true).unwrap();
            i += 1;
            assert!(known(&w) >= Some(blocks::size_blocks(&w.cx(), &w.inode)));
        }
        while blocks::size_blocks(&w.cx(), &w.inode) > blocks {
            i -= 1;
            w.remove(&name(i)).unwrap();
        }
        w.verify_all_lookups();
    }
}

#[test]
fn a_block_that_can_be_read_again_has_each_name_once() {
    let mut w = World::with_names(4096, 64, 80);
    let (first, last) = (w.lookup(&name(0)).unwrap().unwrap(), w.lookup(&name(79)).unwrap().unwrap());
    assert!(first.lblock == 0 && last.lblock > 1);
    let (bad, mut good) = (first.block, vec![0; 4096]);
    drop((first, last));
    w.forget_memory();
    w.dev.read_at(cffs_device::IoKind::Meta, bad << 12, &mut good).unwrap();
    w.dev.write_at(cffs_device::IoKind::Meta, bad << 12, &[0xa5; 512]).unwrap();
    w.create_unseen(b"new", true).unwrap();
    assert!(w.lookup(b"new").unwrap().is_some(), "it lies behind what cannot be read");
    w.journal.commit().unwrap();
    w.journal.checkpoint().unwrap();
    w.cache.drop_clean();
    w.dev.write_at(cffs_device::IoKind::Meta, bad << 12, &good).unwrap();
    w.verify_all_lookups();
    assert_eq!(w.state.names.read().as_ref().unwrap().find(w.cx().hash(b"new")).count(), 1);
    w.remove(b"new").unwrap();
    w.create_unseen(b"another", true).unwrap();
    w.verify();
    w.verify_all_lookups();
    assert!(w.lookup(b"new").unwrap().is_none());
}

#[test]
fn blocks_of_a_small_directory_that_are_near_each_other_are_read_at_once() {
    for together in [2, 3, UNINDEXED_BLOCKS] {
        let mut w = World::new(4096, 64);
        let end = |w: &World| blocks::size_blocks(&w.cx(), &w.inode);
        let mut i = 0;
        while end(&w) < 6 {
            w.apart = if end(&w) < together { 0 } else { w.geo().group_blocks() };
            w.create(&name(i), true).unwrap();
            i += 1;
        }
        w.forget_memory();
        w.lookup(&name(0)).unwrap().unwrap();
        assert_eq!(w.state.names.read().as_ref().unwrap().known_to, together.min(6));
        w.verify_all_lookups();
    }
}

#[test]
fn where_the_blocks_of_a_small_directory_are_is_known_at_once() {
    let mut w = World::in_pieces(80);
    w.forget_memory();
    w.lookup(&name(0)).unwrap().unwrap();
    let end = blocks::size_blocks(&w.cx(), &w.inode);
    assert!((0..end).all(|lblock| w.state.map.read().get(lblock).is_some()));
    assert_eq!(w.state.names.read().as_ref().unwrap().known_to, 1);
}

#[test]
fn lookups_run_in_parallel_from_cold() {
    for n in [100, 5000] {
        let mut w = World::with_names(4096, 64, n);
        w.forget_memory();
        let (cache, seed, inode, state, names) = (&w.cache, w.seed, &w.inode, &w.state, &w.names);
        std::thread::scope(|s| {
            for t in 0..4 {
                s.spawn(move || {
                    let cx = DirCtx { cache, seed, location: InodeLocation::System };
                    for i in 0..n {
                        let name = name((i * 7 + t * 31) % n);
                        let found = lookup(&cx, inode, state, &name).unwrap().expect("the name is there");
                        assert_eq!(found.ino, names[&name]);
                    }
                });
            }
        });
        w.create(b"one more", true).unwrap();
        w.verify();
    }
}

#[test]
fn blocks_allocated_ahead_are_given_back_and_taken_again() {
    let mut w = World::with_names(4096, 64, 3000);
    let ahead = |w: &World| blocks_ahead(&w.cx(), &w.inode, &w.state).unwrap();
    let mut n = 3000;
    while ahead(&w).is_empty() {
        w.create(&name(n), true).unwrap();
        n += 1;
    }
    w.forget_memory();
    let (before, free) = (ahead(&w), w.space.free_frags());
    {
        let cx = DirCtx { cache: &w.cache, seed: w.seed, location: InodeLocation::System };
        let bytes = log_bytes_for_remove(&w.geo()) + before.len() * w.space.log_bytes(w.geo().frags_per_block());
        let txn = w.journal.begin(bytes).unwrap();
        assert!(give_back_ahead(&cx, &txn, &w.space, &mut w.inode, &w.state).unwrap());
    }
    assert!(ahead(&w).is_empty());
    assert!(w.space.free_frags() >= free + w.geo().frag_of_block(before.len() as u64));
    w.forget_memory();
    w.verify();
    w.verify_all_lookups();
    (n..n + 2000).for_each(|i| w.create(&name(i), true).unwrap());
    w.verify();
    w.verify_all_lookups();
}
