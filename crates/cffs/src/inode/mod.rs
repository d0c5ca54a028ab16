//! Inodes in memory, wherever they stand on the device: embedded in a directory entry, in the external inode table, or
//! in the system area.

pub mod locality;
mod rooms;
pub mod table;

use crate::cache::{AddrHasher, AddrMap, BufRef, Cache};
use crate::dir::DirState;
use crate::error::{Error, Result};
use crate::file::FileData;
use crate::format::dirblock::{self, BlockEdit, EntryKind};
use crate::format::inode::{INLINE_MAX, INODE_CORE_SIZE, INODE_HINT};
use crate::format::table::Location;
use crate::format::{
    BlockAddr, BlockKind, Corrupt, EXTERNAL_INO, Geometry, Ino, Inode, LAST_SYSTEM_INO, LOCATOR_INO, ROOT_INO,
};
use crate::journal::Txn;
use crate::quota::{Account, Quota};
use crate::reservation::Reservation;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockWriteGuard};
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};
use table::SlotTable;

/// Where an inode stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// In the system area.
    System,
    /// In the directory block `block`; the entry begins at byte `entry`, the inode at byte `inode`.
    Embedded {
        /// Device block.
        block: BlockAddr,
        /// Byte offset of the entry.
        entry: usize,
        /// Byte offset of the inode.
        inode: usize,
    },
    /// In a slot of the external inode table.
    External {
        /// Device block.
        block: BlockAddr,
        /// Byte offset of the slot.
        offset: usize,
    },
}

impl Home {
    /// The block with the inode. Those of the system area are at fixed places, and changed by all: `None`.
    pub fn block(self) -> Option<BlockAddr> {
        match self {
            Home::System => None,
            Home::Embedded { block, .. } | Home::External { block, .. } => Some(block),
        }
    }
}

/// What of a node its lock protects.
pub struct NodeState {
    /// The inode as programs see it; its size may run ahead of the device.
    pub inode: Inode,
    /// Where it stands.
    pub home: Home,
    /// Size that the device may show: data up to here is written.
    pub disk_size: u64,
    /// Times or size in memory are newer than the device's.
    pub dirty: bool,
    /// Unlinked, waiting for its last reference.
    pub orphan: bool,
    /// Gone: the number may be another file's already.
    pub dead: bool,
    /// Contents that have no place yet.
    pub data: FileData,
    /// What is known of the names in it, for a directory.
    pub dir: Option<Box<DirState>>,
}

/// An inode in memory.
pub struct Node {
    /// Its number.
    pub ino: Ino,
    /// References held by callers of the engine. They outlive the node: a caller holds a number, see [`Inodes::release`].
    pub refs: AtomicU64,
    /// Asked for since the clock's hand last passed.
    used: AtomicBool,
    /// On the list of nodes with something to write.
    pub listed: AtomicBool,
    /// Guarded state.
    pub state: RwLock<NodeState>,
    /// Held by whoever writes to the file or cuts it: a cut takes several transactions. Taken before anything else.
    pub resize: Mutex<()>,
    /// Set while writeback has pages of it in flight.
    pub in_writeback: Mutex<bool>,
    /// Signalled when writeback has ended.
    pub writeback_done: Condvar,
    /// Access time that the inode does not have yet, the least for none (readers hold the lock shared only).
    pub accessed: AtomicI64,
    /// With lazytime: since when times wait to be written; 0 if they do not.
    pub lazy_since: AtomicI64,
    /// End of the last read: whoever goes on from there reads sequentially.
    pub last_read: AtomicU64,
}

impl Node {
    fn new(inode: Inode, home: Home, account: Option<Account>) -> Node {
        let dir = inode.is_dir().then(Box::default);
        let state = NodeState {
            disk_size: inode.size,
            home,
            dirty: false,
            orphan: inode.nlink == 0,
            dead: false,
            data: FileData::new(account),
            dir,
            inode,
        };
        Node {
            ino: state.inode.ino,
            refs: AtomicU64::new(0),
            used: AtomicBool::new(false),
            listed: AtomicBool::new(false),
            state: RwLock::new(state),
            resize: Mutex::new(()),
            in_writeback: Mutex::new(false),
            writeback_done: Condvar::new(),
            accessed: AtomicI64::new(i64::MIN),
            lazy_since: AtomicI64::new(0),
            last_read: AtomicU64::new(0),
        }
    }

    /// Waits until no page of the node is in flight. The caller holds no lock that writeback needs.
    pub fn wait_writeback(&self) {
        let mut busy = self.in_writeback.lock();
        while *busy {
            self.writeback_done.wait(&mut busy);
        }
    }

    /// The state, and the mark to set for a writeback that is to begin: none is under way, and none begins before both are let
    /// go. The caller holds no lock that writeback needs.
    pub fn lock_for_writeback(&self) -> (RwLockWriteGuard<'_, NodeState>, MutexGuard<'_, bool>) {
        loop {
            self.wait_writeback();
            let state = self.state.write();
            let busy = self.in_writeback.lock();
            // Somebody else may have begun one before the node was locked.
            if !*busy {
                return (state, busy);
            }
        }
    }

    /// As on the device, but for its references.
    fn evictable(&self) -> bool {
        !self.listed.load(Ordering::Acquire)
            && self.state.try_read().is_some_and(|s| !s.dirty && s.data.is_clean() && !s.orphan)
    }
}

/// Encodes an inode into its place and logs what differs. `keep_hint` leaves the hint field as it is (an orphan's is
/// its link in the orphan list, kept by [`crate::fs`]).
pub fn write_inode(txn: &Txn<'_>, buf: &BufRef, offset: usize, inode: &Inode, keep_hint: bool) {
    let mut image = [0u8; INODE_CORE_SIZE + INLINE_MAX];
    let image = &mut image[..inode.encoded_len()];
    inode.encode(image);
    let mut e = txn.edit(buf);
    let mut at = 0;
    while at < image.len() {
        let differs = |e: &[u8], at: usize| e[offset + at..offset + at + 8] != image[at..at + 8];
        if (keep_hint && at == INODE_HINT) || !differs(e.bytes(), at) {
            at += 8;
            continue;
        }
        let from = at;
        while at < image.len() && differs(e.bytes(), at) && !(keep_hint && at == INODE_HINT) {
            at += 8;
        }
        e.range(offset + from, at - from).copy_from_slice(&image[from..at]);
    }
}

/// Writes a node's inode to where it stands. On the device the size is [`NodeState::disk_size`]. What the inode takes
/// more or less than when it was last stored is charged to its owner's, group's and project's quota, in the same
/// transaction: whoever changes `Inode::frags` has nothing else to do for that.
pub fn store(txn: &Txn<'_>, st: &mut NodeState) -> Result<()> {
    let size = std::mem::replace(&mut st.inode.size, st.disk_size);
    let outcome = store_as_is(txn, st);
    st.inode.size = size;
    if outcome.is_ok() && st.disk_size == size {
        st.dirty = false;
    }
    if let Some(account) = &st.data.account {
        account.settle(txn, &st.inode);
    }
    outcome
}

fn store_as_is(txn: &Txn<'_>, st: &NodeState) -> Result<()> {
    match st.home {
        Home::System => table::store_system_inode(txn, &st.inode),
        Home::Embedded { block, inode, .. } => {
            let buf = txn.cache().read_meta_any_owner(BlockKind::Dir, block)?;
            write_inode(txn, &buf, inode, &st.inode, st.orphan);
            Ok(())
        }
        Home::External { block, offset } => {
            let id = crate::format::BlockId { kind: BlockKind::ExternalInodes, addr: block, owner: EXTERNAL_INO };
            let buf = txn.cache().read_meta(id)?;
            write_inode(txn, &buf, offset, &st.inode, st.orphan);
            Ok(())
        }
    }
}

/// The part of a home that the locator table keeps.
pub fn location_of(home: Home) -> Location {
    match home {
        Home::System => Location::Free,
        Home::Embedded { block, entry, .. } => Location::Embedded { block, offset: entry },
        Home::External { block, offset } => Location::External { block, offset },
    }
}

/// Reads the inode at a location.
pub fn load_at(cache: &Cache, ino: Ino, location: Location) -> Result<(Inode, Home)> {
    let stale = |what: &str| Error::Corrupt(Corrupt(format!("inode {ino}: {what}")));
    let (inode, home) = match location {
        Location::Free => return Err(Error::Stale),
        Location::Embedded { block, offset } => {
            let buf = cache.read_meta_any_owner(BlockKind::Dir, block)?;
            let b = buf.read();
            let e =
                dirblock::entry_at(&b, offset).filter(|e| matches!(e.kind, EntryKind::Embedded | EntryKind::Orphan));
            let e = e.ok_or_else(|| stale("the locator table points to no entry"))?;
            let at = e.inode_offset();
            (Inode::decode(&b[at..e.offset + e.len])?, Home::Embedded { block, entry: offset, inode: at })
        }
        Location::External { block, offset } => {
            let id = crate::format::BlockId { kind: BlockKind::ExternalInodes, addr: block, owner: EXTERNAL_INO };
            let buf = cache.read_meta(id)?;
            let b = buf.read();
            let end = offset + crate::format::geometry::INODE_SLOT_SIZE;
            let slot = b.get(offset..end).ok_or_else(|| stale("slot outside its block"))?;
            (Inode::decode(slot)?, Home::External { block, offset })
        }
    };
    if inode.ino != ino {
        return Err(stale(&format!("inode {} stands in its place", inode.ino)));
    }
    // What was read may lie where the file system has grown just before.
    check(cache.geometry(), &inode)?;
    Ok((inode, home))
}

/// Checks what later code relies on.
pub(crate) fn check(g: &Geometry, inode: &Inode) -> Result<()> {
    if let crate::format::InodeFormat::Extents(list) = &inode.format
        && let Some(e) = list.iter().find(|e| !g.contains(e.start, e.len))
    {
        let what = format!("inode {}: extent at fragment {} lies outside the file system", inode.ino, e.start);
        return Err(Corrupt(what).into());
    }
    Ok(())
}

const SHARDS: usize = 64;

#[derive(Default)]
struct Shard {
    map: AddrMap<Ino, Arc<Node>>,
    /// References to inodes that are not in memory. The kernel keeps some hundred thousands for as long as it has room.
    held: AddrMap<Ino, u64>,
    /// Changes when a node leaves: what was read from the device before that may be old.
    departures: u64,
    /// The nodes in the order in which they are looked at for eviction.
    clock: VecDeque<Ino>,
}

impl Shard {
    /// The node if it is in memory.
    fn find(&self, ino: Ino) -> Option<&Arc<Node>> {
        // A plain load first: a hot node must not bounce between cores.
        self.map.get(&ino).inspect(|n| {
            if !n.used.load(Ordering::Relaxed) {
                n.used.store(true, Ordering::Relaxed);
            }
        })
    }
}

/// The inodes in memory, and the tables to find the others.
pub struct Inodes {
    shards: Box<[Mutex<Shard>]>,
    count: AtomicUsize,
    limit: usize,
    quota: Option<Arc<Quota>>,
    /// Number to location.
    pub locator: SlotTable,
    /// Inodes without a directory.
    pub external: SlotTable,
}

/// Inodes are dropped when more than this many are in memory.
const INODES_MIN: usize = 4096;
/// Nodes looked at when one is added to a part that is over its share: each may be spared once.
const EVICT_STEPS: usize = 4;

impl Inodes {
    /// Reads the system inodes. `chunk` is the number of inodes in a chunk of the external table.
    pub fn load(cache: &Cache, chunk: u64, cache_bytes: usize, quota: Option<Arc<Quota>>) -> Result<Inodes> {
        let g = cache.geometry();
        let locator = table::load_system_inode(cache, LOCATOR_INO)?;
        let external = table::load_system_inode(cache, EXTERNAL_INO)?;
        let record = crate::format::geometry::INODE_SLOT_SIZE;
        Ok(Inodes {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            // About a kilobyte each; an eighth of the cache.
            limit: (cache_bytes / 8192).max(INODES_MIN),
            quota,
            locator: SlotTable::new(g, BlockKind::Locator, table_locator_size(), 1, locator),
            external: SlotTable::new(g, BlockKind::ExternalInodes, record, chunk, external),
        })
    }

    /// The account of an inode that was read. Of the system inodes only the root counts.
    fn account(&self, inode: &Inode) -> Option<Account> {
        let quota = self.quota.as_ref()?;
        let counts = inode.ino == ROOT_INO || inode.ino > LAST_SYSTEM_INO;
        counts.then(|| Account::of_existing(quota.clone(), inode))
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        let mut h = AddrHasher::default();
        h.write_u64(ino);
        &self.shards[h.finish() as usize % SHARDS]
    }

    /// The node if it is in memory.
    pub fn cached(&self, ino: Ino) -> Option<Arc<Node>> {
        self.shard(ino).lock().find(ino).cloned()
    }

    /// Takes references from an inode that is not in memory: then nothing depends on them, since whatever goes with its last
    /// reference stays in memory until then. The node of one that is, for the caller to do it.
    pub fn release(&self, ino: Ino, n: u64) -> Option<Arc<Node>> {
        let mut shard = self.shard(ino).lock();
        if let Some(node) = shard.map.get(&ino) {
            return Some(node.clone());
        }
        if let Entry::Occupied(mut held) = shard.held.entry(ino) {
            match held.get().saturating_sub(n) {
                0 => drop(held.remove()),
                left => *held.get_mut() = left,
            }
        }
        None
    }

    /// The node, made from what `load` finds in a block at hand if it is not in memory. `load` does no I/O.
    pub fn get_or_load(&self, ino: Ino, load: impl FnOnce() -> Result<(Inode, Home)>) -> Result<Arc<Node>> {
        let mut shard = self.shard(ino).lock();
        if let Some(n) = shard.find(ino) {
            return Ok(n.clone());
        }
        let (inode, home) = load()?;
        let account = self.account(&inode);
        let node = Arc::new(Node::new(inode, home, account));
        self.put(&mut shard, node.clone());
        Ok(node)
    }

    /// The node by number, found through the locator table.
    pub fn get(&self, cache: &Cache, ino: Ino) -> Result<Arc<Node>> {
        loop {
            let departures = {
                let shard = self.shard(ino).lock();
                if let Some(n) = shard.find(ino) {
                    return Ok(n.clone());
                }
                shard.departures
            };
            let loaded = if (1..=LAST_SYSTEM_INO).contains(&ino) {
                table::load_system_inode(cache, ino).map(|inode| (inode, Home::System))
            } else {
                self.locate(cache, ino).and_then(|location| load_at(cache, ino, location))
            };
            let mut shard = self.shard(ino).lock();
            if shard.departures != departures || shard.map.contains_key(&ino) {
                continue; // somebody else had it meanwhile and may have changed or moved it: errors do not count either
            }
            let (inode, home) = loaded?;
            let account = self.account(&inode);
            let node = Arc::new(Node::new(inode, home, account));
            self.put(&mut shard, node.clone());
            return Ok(node);
        }
    }

    /// What the locator table says of a number.
    pub fn locate(&self, cache: &Cache, ino: Ino) -> Result<Location> {
        let Some((buf, offset)) = self.locator.find(cache, ino)? else { return Err(Error::Stale) };
        let b = buf.read();
        Ok(Location::decode(&b[offset..offset + table_locator_size()], ino, b.len())?)
    }

    /// Notes where an inode has moved.
    pub fn relocate(&self, txn: &Txn<'_>, ino: Ino, home: Home) -> Result<()> {
        let found = self.locator.find(txn.cache(), ino)?;
        let (buf, offset) = found.ok_or_else(|| Corrupt(format!("inode {ino} is not in the locator table")))?;
        table::write_location(txn, &buf, offset, &location_of(home));
        Ok(())
    }

    /// A new node (its inode was just made, in this transaction). Its ids are charged, out of `reserved` if that was done
    /// before.
    pub fn insert(&self, txn: &Txn<'_>, inode: Inode, home: Home, reserved: Option<&Reservation>) -> Arc<Node> {
        let ino = inode.ino;
        let account = self.quota.clone().map(|q| Account::of_new(q, &inode));
        if let Some(a) = &account {
            a.settle_holding(txn, &inode, reserved);
        }
        let node = Arc::new(Node::new(inode, home, account));
        self.put(&mut self.shard(ino).lock(), node.clone());
        node
    }

    /// Forgets a node that is gone. Its number may have gone to a new file in the meantime, whose node stays.
    pub fn remove(&self, node: &Arc<Node>) {
        let mut shard = self.shard(node.ino).lock();
        shard.departures += 1;
        if shard.map.get(&node.ino).is_some_and(|n| Arc::ptr_eq(n, node)) {
            shard.map.remove(&node.ino);
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Inodes in memory.
    pub fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Puts a node into its part, and drops others there if it is over its share: a few steps of the clock at a time,
    /// so that many nodes in use cost nobody much.
    fn put(&self, shard: &mut Shard, node: Arc<Node>) {
        let ino = node.ino;
        if let Some(refs) = shard.held.remove(&ino) {
            node.refs.store(refs, Ordering::Release);
        }
        if shard.map.insert(ino, node).is_none() {
            shard.clock.push_back(ino);
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        if shard.map.len() > self.limit / SHARDS {
            self.evict(shard, EVICT_STEPS);
        }
    }

    fn evict(&self, shard: &mut Shard, steps: usize) {
        for _ in 0..steps {
            let Some(ino) = shard.clock.pop_front() else { return };
            match shard.map.get(&ino) {
                None => {}
                // Nobody has it, so nobody changes its references.
                Some(n) if Arc::strong_count(n) == 1 && !n.used.swap(false, Ordering::Relaxed) && n.evictable() => {
                    match n.refs.load(Ordering::Acquire) {
                        0 => {}
                        refs => drop(shard.held.insert(ino, refs)),
                    }
                    shard.map.remove(&ino);
                    shard.departures += 1;
                    self.count.fetch_sub(1, Ordering::Relaxed);
                }
                Some(_) => shard.clock.push_back(ino),
            }
        }
    }

    /// Drops all nodes that nobody uses and that are as on the device (for measurements of a cold cache).
    pub fn drop_clean(&self) {
        for shard in self.shards.iter() {
            let mut shard = shard.lock();
            // Each is spared once.
            let steps = 2 * shard.clock.len();
            self.evict(&mut shard, steps);
        }
    }

    /// All nodes in memory.
    pub fn all(&self) -> Vec<Arc<Node>> {
        self.shards.iter().flat_map(|s| s.lock().map.values().cloned().collect::<Vec<_>>()).collect()
    }
}

const fn table_locator_size() -> usize {
    crate::format::table::LOCATOR_SIZE
}
