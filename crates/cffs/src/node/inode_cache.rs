//! The inodes in memory, and the tables to find the others.

use super::node::Node;
use crate::addr_map::{AddrHasher, AddrMap};
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::format::table::{LOCATOR_SIZE, Location};
use crate::format::{BlockKind, Corrupt, EXTERNAL_INO, Ino, Inode, LAST_SYSTEM_INO, LOCATOR_INO, ROOT_INO};
use crate::inode::table::{self, SlotTable};
use crate::inode::{InodeLocation, load_at, location_record};
use crate::journal::Txn;
use crate::quota::{InodeCharge, Quota};
use crate::reservation::Reservation;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::hash::Hasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
pub struct InodeCache {
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

impl InodeCache {
    /// Reads the system inodes. `chunk` is the number of inodes in a chunk of the external table.
    pub fn load(cache: &Cache, chunk: u64, cache_bytes: usize, quota: Option<Arc<Quota>>) -> Result<InodeCache> {
        let g = cache.geometry();
        let locator = table::load_system_inode(cache, LOCATOR_INO)?;
        let external = table::load_system_inode(cache, EXTERNAL_INO)?;
        let record = crate::format::geometry::INODE_SLOT_SIZE;
        Ok(InodeCache {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            // About a kilobyte each; an eighth of the cache.
            limit: (cache_bytes / 8192).max(INODES_MIN),
            quota,
            locator: SlotTable::new(g, BlockKind::Locator, LOCATOR_SIZE, 1, locator),
            external: SlotTable::new(g, BlockKind::ExternalInodes, record, chunk, external),
        })
    }

    /// The account of an inode that was read. Of the system inodes only the root counts.
    fn account(&self, inode: &Inode) -> Option<InodeCharge> {
        let quota = self.quota.as_ref()?;
        let counts = inode.ino == ROOT_INO || inode.ino > LAST_SYSTEM_INO;
        counts.then(|| InodeCharge::of_existing(quota.clone(), inode))
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
    pub fn get_or_load(&self, ino: Ino, load: impl FnOnce() -> Result<(Inode, InodeLocation)>) -> Result<Arc<Node>> {
        let mut shard = self.shard(ino).lock();
        if let Some(n) = shard.find(ino) {
            return Ok(n.clone());
        }
        let (inode, location) = load()?;
        let account = self.account(&inode);
        let node = Arc::new(Node::new(inode, location, account));
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
                table::load_system_inode(cache, ino).map(|inode| (inode, InodeLocation::System))
            } else {
                self.locate(cache, ino).and_then(|location| load_at(cache, ino, location))
            };
            let mut shard = self.shard(ino).lock();
            if shard.departures != departures || shard.map.contains_key(&ino) {
                continue; // somebody else had it meanwhile and may have changed or moved it: errors do not count either
            }
            let (inode, location) = loaded?;
            let account = self.account(&inode);
            let node = Arc::new(Node::new(inode, location, account));
            self.put(&mut shard, node.clone());
            return Ok(node);
        }
    }

    /// What the locator table says of a number.
    pub fn locate(&self, cache: &Cache, ino: Ino) -> Result<Location> {
        let Some((buf, offset)) = self.locator.find(cache, ino)? else { return Err(Error::Stale) };
        let b = buf.read();
        Ok(Location::decode(&b[offset..offset + LOCATOR_SIZE], ino, b.len())?)
    }

    /// Notes where an inode has moved.
    pub fn relocate(&self, txn: &Txn<'_>, ino: Ino, location: InodeLocation) -> Result<()> {
        let found = self.locator.find(txn.cache(), ino)?;
        let (buf, offset) = found.ok_or_else(|| Corrupt(format!("inode {ino} is not in the locator table")))?;
        table::write_location(txn, &buf, offset, &location_record(location));
        Ok(())
    }

    /// A new node (its inode was just made, in this transaction). Its ids are charged, out of `reserved` if that was done
    /// before.
    pub fn insert(
        &self,
        txn: &Txn<'_>,
        inode: Inode,
        location: InodeLocation,
        reserved: Option<&Reservation>,
    ) -> Arc<Node> {
        let ino = inode.ino;
        let account = self.quota.clone().map(|q| InodeCharge::of_new(q, &inode));
        if let Some(a) = &account {
            a.charge_delta_from(txn, &inode, reserved);
        }
        let node = Arc::new(Node::new(inode, location, account));
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

    /// Numbers of the inodes that somebody has references to.
    pub fn referenced(&self) -> Vec<Ino> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            all.extend(shard.map.values().filter(|n| n.refs.load(Ordering::Acquire) > 0).map(|n| n.ino));
            all.extend(shard.held.keys());
        }
        all
    }

    /// All nodes in memory.
    pub fn all(&self) -> Vec<Arc<Node>> {
        self.shards.iter().flat_map(|s| s.lock().map.values().cloned().collect::<Vec<_>>()).collect()
    }
}
