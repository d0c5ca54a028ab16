//! Moving blocks of a table to other places.

use super::{SlotTable, TableState};
use crate::cache::Cache;
use crate::error::Result;
use crate::extent;
use crate::format::dirblock::BlockEdit;
use crate::format::extent::LOGICAL_END;
use crate::format::table::map_count;
use crate::format::{BlockAddr, BlockKind, Geometry, META_SPECIFIC, Run};
use crate::journal::Txn;
use crate::space::Space;

impl SlotTable {
    /// The blocks of the table, maps included: number within its file, and address.
    pub fn blocks(&self, cache: &Cache) -> Result<Vec<(u64, BlockAddr)>> {
        let g = *cache.geometry();
        let mut all = Vec::new();
        extent::for_each(cache, &self.inode(), 0..LOGICAL_END, |e| {
            let (first, to) = (g.block_of_frag(e.logical), g.block_of_frag(e.start));
            all.extend((0..g.block_of_frag(e.len)).map(|i| (first + i, to + i)));
            Ok(())
        })?;
        Ok(all)
    }

    /// Most log bytes that [`SlotTable::relocate_block`] needs, without the inode of the table.
    pub fn log_bytes_for_relocate(&self, g: &Geometry, space: &Space) -> usize {
        let bits = 2 * space.log_bytes(g.frags_per_block()) + space.log_bytes_for_next_init();
        let tree = self.with_inode(|inode| extent::log_bytes_for_relocate(g, space, inode));
        tree + g.block_size() + 512 + bits
    }

    /// Moves a block to an allocated one. Nobody else has a transaction open, because a block that was found is changed without a
    /// lock. False if the block is not there any more.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`] if the extent tree needs a block and there is none; errors of reading. Nothing has changed then.
    pub fn relocate_block(
        &self,
        txn: &Txn<'_>,
        space: &Space,
        lblock: u64,
        from: BlockAddr,
        to: BlockAddr,
    ) -> Result<bool> {
        let cache = txn.cache();
        let g = *cache.geometry();
        let st = &mut *self.state.lock();
        if self.place(cache, st, lblock)? != Some(from) {
            return Ok(false);
        }
        let data = self.shape.data_of_block(lblock);
        let kind = if data.is_some() { self.kind } else { BlockKind::TableMap };
        let old = cache.read_meta(self.id(st, kind, from))?;
        let room = match data {
            Some(data) => {
                let (map, at) = self.map(cache, st, data)?;
                self.has_room(data, map_count(&map.read(), at))
            }
            None => false,
        };
        let run = |block| Run { start: g.frag_of_block(block), len: g.frags_per_block() };
        // What the bitmap needs is read before, because after the mapping nothing may fail.
        space.prepare_free(run(from))?;
        space.prepare_commit(run(to))?;
        let logical = g.frag_of_block(lblock)..g.frag_of_block(lblock + 1);
        extent::relocate(txn, space, &mut st.inode, logical, run(to).start)?;
        space.commit_alloc(txn, run(to))?;
        let new = txn.init_block(self.id(st, kind, to));
        {
            let from = old.read();
            let len = from.len() - META_SPECIFIC;
            txn.edit(&new).range(META_SPECIFIC, len).copy_from_slice(&from[META_SPECIFIC..]);
        }
        txn.free_block(from);
        space.free(txn, run(from))?;
        st.places.insert(lblock, to);
        st.changed = true;
        if let Some(data) = data {
            self.note_moved(&g, st, data, room, [from, to]);
        }
        Ok(true)
    }

    /// A block with or without room is in another neighbourhood.
    fn note_moved(&self, g: &Geometry, st: &mut TableState, data: u64, room: bool, places: [BlockAddr; 2]) {
        let [was, is] = places.map(|block| self.near(g, block));
        if let Some(rooms) = st.free_slots.as_mut().filter(|_| room && was != is) {
            rooms.remove(was, data);
            rooms.add(is, data);
        }
    }

    /// Moves a node of the table's extent tree; see [`extent::relocate_node`].
    ///
    /// # Errors
    /// Those of reading. Nothing has changed then.
    pub fn relocate_node(
        &self,
        txn: &Txn<'_>,
        space: &Space,
        key: u64,
        from: BlockAddr,
        to: BlockAddr,
    ) -> Result<bool> {
        let st = &mut *self.state.lock();
        let moved = extent::relocate_node(txn, space, &mut st.inode, key, from, to)?;
        st.changed |= moved;
        Ok(moved)
    }
}
