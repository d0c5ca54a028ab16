//! Weak references to blocks: they find a block without the way through the cache's map.
//!
//! Code that looks at the same blocks again and again (the buckets of a large directory's index are each a miss of the
//! processor's caches) keeps [`WeakBufRef`]s. They hold no block in memory. An evicted block cannot be upgraded any more: that
//! is decided at one moment, in [`Cache::drop_unheld`]. A block that leaves the cache because it was freed may be
//! upgraded as long as somebody holds it; so the code that frees blocks drops its weak references to them.

use super::block_cache::Cache;
use super::buf::{Buf, BufRef};
use crate::format::{self, BlockKind, Ino};
use cffs_device::IoKind;
use std::sync::{Arc, Weak};

/// A weak reference to a block, or to none.
#[derive(Clone, Default)]
pub struct WeakBufRef(Weak<Buf>);

impl WeakBufRef {
    /// A weak reference to this block.
    pub fn new(buf: &BufRef) -> WeakBufRef {
        WeakBufRef(Arc::downgrade(buf))
    }
}

impl Cache {
    /// The block if it is still cached, and still a verified block of this kind and owner.
    pub fn upgrade(&self, block: &WeakBufRef, kind: BlockKind, owner: Ino) -> Option<BufRef> {
        let buf = block.0.upgrade()?;
        {
            let bytes = buf.read();
            let same = format::get_u32(&bytes, 0) == kind as u32 && format::block_owner(&bytes) == owner;
            if !same || !buf.is_verified() {
                return None;
            }
        }
        self.touch(&buf, self.policy(IoKind::Meta));
        Some(buf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::PrefetchMode;
    use crate::format::{BlockAddr, BlockId, Geometry};
    use crate::mkfs::{MkfsOptions, mkfs};
    use cffs_device::{Device, MemoryDevice};
    use std::sync::atomic::{AtomicU64, Ordering};

    const ADDR: BlockAddr = 1000;
    const OWNER: Ino = 77;

    fn cache() -> Cache {
        let dev = Arc::new(MemoryDevice::new(32 << 20));
        let sb = mkfs(&*dev, None, &MkfsOptions::default()).unwrap();
        Cache::new(dev as Arc<dyn Device>, Geometry::new(&sb).unwrap(), 8 << 20, PrefetchMode::Adaptive)
    }

    /// A block of a directory's index that is as on the device.
    fn block(cache: &Cache, addr: BlockAddr) -> BufRef {
        let buf = cache.install_new(addr);
        let id = BlockId { kind: BlockKind::DirIndex, addr, owner: OWNER };
        format::init_block(&mut buf.lock().bytes, cache.geometry().fsid, id);
        buf.set_verified(true);
        cache.release_new(&buf);
        buf
    }

    #[test]
    fn an_evicted_block_cannot_be_upgraded() {
        let cache = cache();
        let held = block(&cache, ADDR);
        let known = WeakBufRef::new(&held);
        let upgrade = |kind, owner| cache.upgrade(&known, kind, owner);
        assert!(upgrade(BlockKind::DirIndex, OWNER).is_some_and(|b| Arc::ptr_eq(&b, &held)));
        assert!(upgrade(BlockKind::DirIndex, OWNER + 1).is_none() && upgrade(BlockKind::Dir, OWNER).is_none());
        cache.drop_clean();
        assert!(upgrade(BlockKind::DirIndex, OWNER).is_some(), "held, so it stays");
        drop(held);
        assert!(upgrade(BlockKind::DirIndex, OWNER).is_some(), "the cache holds it");
        cache.drop_clean();
        assert!(upgrade(BlockKind::DirIndex, OWNER).is_none());
        assert!(cache.peek(ADDR).is_none());
        assert!(cache.upgrade(&WeakBufRef::default(), BlockKind::DirIndex, OWNER).is_none());
    }

    #[test]
    fn a_block_with_changes_stays_even_if_they_came_late() {
        let cache = cache();
        drop(block(&cache, ADDR));
        let blocks = cache.used_bytes();
        // As if somebody had changed it after it was chosen for eviction, and let go of it.
        cache.peek(ADDR).unwrap().pin();
        let ls = cache.shard(ADDR);
        assert!(!cache.drop_unheld(&mut ls.shard.lock(), ADDR));
        let buf = cache.peek(ADDR).expect("it stays");
        assert!(buf.is_pinned() && cache.used_bytes() == blocks);
    }

    /// Who upgrades a reference may change the block: so it must be the one that the cache has.
    #[test]
    fn no_upgrade_succeeds_while_a_block_is_evicted() {
        let (cache, found) = (&cache(), &AtomicU64::new(0));
        let lost = std::thread::scope(|s| {
            let (send, receive) = std::sync::mpsc::sync_channel::<(BlockAddr, WeakBufRef)>(64);
            let finder = s.spawn(move || {
                let mut lost = 0u64;
                while let Ok((addr, known)) = receive.recv() {
                    for buf in (0..200).map_while(|_| cache.upgrade(&known, BlockKind::DirIndex, OWNER)) {
                        found.fetch_add(1, Ordering::Relaxed);
                        lost += u64::from(!cache.peek(addr).is_some_and(|b| Arc::ptr_eq(&b, &buf)));
                    }
                }
                lost
            });
            // On a busy machine the other thread may come too late for thousands of blocks.
            for n in (0..1_000_000).take_while(|n| *n < 6_000 || found.load(Ordering::Relaxed) == 0) {
                let addr = ADDR + n % 6_000;
                let known = WeakBufRef::new(&block(cache, addr));
                send.send((addr, known)).unwrap();
                cache.drop_clean();
            }
            drop(send);
            let lost = finder.join().unwrap();
            assert!(found.load(Ordering::Relaxed) > 0, "not a single one was found in time");
            lost
        });
        assert_eq!(lost, 0, "blocks were found that the cache no longer had");
    }
}
